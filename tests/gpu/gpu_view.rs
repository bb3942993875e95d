//! A model's view of its card, and the limit of its share: over all of its processes, by every way to ask.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_tests::gpu::{MIB, ask, card, instance, model, on_card, run};
use omni_tests::{Node, PATIENCE, wait_for};
use serde_json::json;
use std::fs;
use std::path::Path;

/// Free and total by the driver, total by the device, and NVML's total, free and used.
const LOOK: &str = r#"
total, device, count = ctypes.c_size_t(), ctypes.c_int(), ctypes.c_int()
call("cuDeviceGetCount", ctypes.byref(count))
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDeviceTotalMem_v2", ctypes.byref(total), device)
nvml, handle, seen = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
for entry, arguments in [
    ("nvmlInit_v2", []),
    ("nvmlDeviceGetHandleByIndex_v2", [ctypes.c_uint(0), ctypes.byref(handle)]),
    ("nvmlDeviceGetMemoryInfo", [handle, seen]),
]:
    assert getattr(nvml, entry)(*arguments) == 0, entry
tell(cuda=memory(), device=total.value, nvml=list(seen), count=count.value)
"#;

/// A second process takes 24 MiB and holds them, while the first finds out where the limit is.
const TWO_PROCESSES: &str = r#"
import subprocess, sys
CHILD = '''
import ctypes, sys
cuda, context, address, device = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0 and cuda.cuCtxSetCurrent(context) == 0
print(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(24 << 20)),
      cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(24 << 20 | 1)), flush=True)
sys.stdin.readline()
'''
child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
said = child.stdout.readline().split()
address, fills = ctypes.c_uint64(), ctypes.c_uint64()
beyond = attempt("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(24 << 20 | 1))
full = attempt("cuMemAlloc_v2", ctypes.byref(fills), ctypes.c_size_t(24 << 20))
no_byte = attempt("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(1))
free = memory()[0]
call("cuMemFree_v2", fills)
child.kill()
child.wait()
after = attempt("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(48 << 20))
call("cuMemFree_v2", address)
tell(said=said, beyond=beyond, full=full, no_byte=no_byte, free=free, after=after)
"#;

/// Attempts to write what is not the process's own. The name of a thread is, and the driver writes it.
const WRITES: &str = r#"
import os, threading
written = []
places = ["sys/kernel/core_pattern", "sys/kernel/hostname", "sysrq-trigger", "irq/default_smp_affinity", "1/comm",
          "1/oom_score_adj", "meminfo", "cpuinfo", "driver/nvidia/x", "x"]
for path in places:
    for act in (lambda: open("/proc/" + path, "ab", 0).write(b"1"), lambda: os.truncate("/proc/" + path, 0),
                lambda: os.mkdir("/proc/" + path), lambda: os.chmod("/proc/" + path, 0o777)):
        try:
            act()
            written.append(path)
        except OSError:
            pass
ends = threading.Event()
thread = threading.Thread(target=ends.wait)
thread.start()
comm = f"/proc/self/task/{thread.native_id}/comm"
with open(comm, "wb", 0) as file:  # as `fopen` does: it is made if it is not there, and truncated
    file.write(b"named")
name = open(comm).read()
ends.set()
tell(written=written, name=name)
"#;

fn node() -> Node {
    Node::builder().gpus(&[card(512)], "memory-budget = \"256MiB\"").start()
}

#[test]
fn every_query_shows_the_share_in_both_modes() {
    let node = node();
    model("unified", 16).limit(64).publish(&node);
    model("device", 16).limit(64).device().publish(&node);
    for name in ["unified", "device"] {
        let (free, total) = (48 * MIB, 64 * MIB);
        let expected = json!({"cuda": [free, total], "device": total, "nvml": [total, free, 16 * MIB], "count": 1});
        assert_eq!(run(&node, name, LOOK), expected, "{name}");
        assert_eq!(on_card(&node, name), 16);
    }
    // Both have as much, one of them movable.
    let state = node.cards()[0].state().unwrap();
    assert_eq!((state.resident(), state.device()), (16 * MIB, 16 * MIB));
    node.stop();
}

#[test]
fn threads_can_be_named_and_nothing_else_of_the_kernel_is_changed() {
    let node = node();
    model("unified", 4).limit(64).publish(&node);
    model("device", 4).limit(64).device().publish(&node);
    for name in ["unified", "device"] {
        assert_eq!(run(&node, name, WRITES), json!({"written": [], "name": "named\n"}), "{name}");
    }
    node.stop();
}

#[test]
fn the_limit_holds_over_two_processes_and_the_model_goes_on() {
    let node = node();
    for (name, one) in [("unified", model("unified", 16)), ("device", model("device", 16).device())] {
        one.limit(64).publish(&node);
        let out = out_of_memory();
        let expected =
            json!({"said": ["0", out.to_string()], "beyond": out, "full": 0, "no_byte": out, "free": 0, "after": 0});
        assert_eq!(run(&node, name, TWO_PROCESSES), expected, "{name}");
        ask(&node, name);
        wait_for("what is left", PATIENCE, || {
            (instance(&node, name).unwrap().allocated_bytes == 16 * MIB).then_some(())
        });
        assert_eq!((on_card(&node, name), node.model(name).restarts), (16, 0));
    }
    node.stop();
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
fn out_of_memory() -> u64 {
    2
}

/// Evicted memory is in the host: the group has room for it, which is hidden from the model.
#[test]
fn evicted_memory_has_room_in_the_control_group_and_is_hidden_from_the_model() {
    let node = node();
    model("unified", 4).limit(64).publish(&node);
    model("device", 4).limit(64).device().publish(&node);
    let look = "tell(shown=int(open('/proc/meminfo').readline().split()[1]) // 1024)";
    for (name, room) in [("unified", 256 + 64), ("device", 256)] {
        assert_eq!(run(&node, name, look), json!({"shown": 256}), "{name}");
        assert_eq!(group_limit(&node, name), room * MIB, "{name}");
    }
    node.stop();
}

/// Limit of the control group of a model's engine, in bytes.
fn group_limit(node: &Node, model: &str) -> u64 {
    let groups = fs::read_to_string(format!("/proc/{}/cgroup", node.engine(model).unwrap())).unwrap();
    let limits = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (hierarchy, path) = (parts.next()?, parts.next()?.trim_start_matches('/'));
        let file = match hierarchy {
            "" => Path::new("/sys/fs/cgroup").join(path).join("memory.max"),
            "memory" => Path::new("/sys/fs/cgroup/memory").join(path).join("memory.limit_in_bytes"),
            _ => return None,
        };
        fs::read_to_string(file).ok()?.trim().parse::<u64>().ok()
    });
    limits.min().expect("a limit")
}

#[test]
fn a_model_without_gpu_memory_sees_no_gpu() {
    let code = r#"
import ctypes, glob, os

def handle_request(request, context):
    opened = {}
    for name in ["libcuda.so.1", "libnvidia-ml.so.1", "libcuda.so"]:
        try:
            opened[name] = bool(ctypes.CDLL(name))
        except OSError:
            opened[name] = False
    names = [name for name in os.environ if "CUDA" in name or "GPU" in name or name == "LD_PRELOAD"]
    return [opened, glob.glob("/dev/nvidia*"), os.path.exists("/gpu"), names]
"#;
    let node = node();
    node.publish("plain", &[("model.py", code)]);
    model("beside", 16).publish(&node);
    ask(&node, "beside");
    wait_for("the model to be seen", PATIENCE, || (node.models().len() == 2).then_some(()));
    let answer = node.http().run("plain", &json!(null));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let none = json!({"libcuda.so.1": false, "libnvidia-ml.so.1": false, "libcuda.so": false});
    assert_eq!(answer.json()["result"], json!([none, [], false, []]));
    assert!(instance(&node, "plain").is_none());
    node.stop();
}

/// The package that programs use for the driver's API, as it is, in a model's environment.
#[test]
fn cuda_bindings_in_a_model() {
    let code = r#"
from cuda.bindings import driver

def handle_request(request, context):
    def call(entry, *arguments):
        code, *values = getattr(driver, entry)(*arguments)
        assert code == driver.CUresult.CUDA_SUCCESS, (entry, code)
        return values[0] if len(values) == 1 else values
    call("cuInit", 0)
    device = call("cuDeviceGet", 0)
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", device))
    address = call("cuMemAlloc", 16 << 20)
    out, _ = driver.cuMemAlloc(48 << 20 | 1)
    found = [call("cuMemGetInfo"), call("cuDeviceTotalMem", device), out.name]
    call("cuMemFree", address)
    return found
"#;
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(".omni/gpu-clients/cuda12/bin/python");
    assert!(python.exists(), "{} is not there: `make setup` makes it", python.display());
    let node = node();
    let manifest =
        format!("schema = 1\n[runtime]\ninterpreter = \"{}\"\n[resources]\ngpu-memory = \"64MiB\"\n", python.display());
    node.publish("bindings", &[("model.py", code), ("omni.toml", &manifest)]);
    wait_for("the model to be seen", PATIENCE, || (node.models().len() == 1).then_some(()));
    let answer = node.http().run("bindings", &json!(null));
    assert_eq!(answer.status, 200, "{}\n{}", answer.text(), node.omnictl(["logs", "bindings"]).stdout);
    let expected = json!([[48 * MIB, 64 * MIB], 64 * MIB, "CUDA_ERROR_OUT_OF_MEMORY"]);
    assert_eq!(answer.json()["result"], expected);
    node.stop();
}
