//! Uncooperative models: their reports count for themselves only, and cost at most themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::sys::signal::{Signal, kill};
use omni_control_api::Residency;
use omni_tests::gpu::{MIB, PAST_THE_SHIM, ask, card, model, on_card, place, run};
use omni_tests::{Node, PATIENCE, process, wait_for};
use serde_json::json;

/// Two models of 40 MiB where 64 may be: each needs the other's room.
fn node() -> Node {
    let config = "memory-budget = \"64MiB\"\nquantum = \"50ms\"\nevict-timeout = \"2s\"";
    let node = Node::builder().gpus(&[card(4096)], config).start();
    for name in ["hostile", "honest"] {
        model(name, 40).publish(&node);
        ask(&node, name);
    }
    ask(&node, "hostile");
    node
}

/// The one that was lied to goes on as if nothing were.
fn honest_is_well(node: &Node) {
    // A model that was ended starts again, and its start takes room from the others until it is over.
    wait_for("all of its memory", PATIENCE, || {
        ask(node, "honest");
        (on_card(node, "honest") == 40).then_some(())
    });
    let honest = node.model("honest");
    assert_eq!((honest.restarts, honest.last_exit), (0, None), "{}", node.log());
}

/// Was ended for this reason, and works again once it is asked.
fn ended_and_came_back(node: &Node, name: &str, why: &str) {
    wait_for("its end", PATIENCE, || (node.model(name).restarts > 0).then_some(()));
    assert!(node.log().contains(why), "{why}:\n{}", node.log());
    wait_for("its return", PATIENCE, || (node.http().run(name, &json!(null)).status == 200).then_some(()));
    ask(node, name);
}

/// A second connection to the worker's socket; `packet` is what a shim says, `HELLO` how it begins.
const CONNECT: &str = r#"
import builtins, socket, struct
HELLO = struct.pack("<9Q", 1, 0, os.getpid(), 0, 0, 0, 0, 0, 0)
HELLO_WITH_ALL = struct.pack("<9Q", 1, 0, os.getpid(), 0, 0, 2**60, 2**60, 0, 0)
def done(number, moved=0, managed=0, resident=0):
    return struct.pack("<9Q", 2, number, os.getpid(), moved, 1, managed, resident, 0, 0)
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.connect("/gpu/control.sock")
builtins.kept = line  # it lives as long as the model
"#;

/// Waits until the worker has closed the connection.
const CLOSED: &str = "
line.settimeout(30)
try:
    while line.recv(64):
        pass
except ConnectionError:
    pass
";

#[test]
fn a_model_that_claims_everything_and_never_answers_is_ended_after_the_timeout() {
    let node = node();
    // The model with the most memory is asked to leave.
    let _ = run(&node, "hostile", &format!("{CONNECT}\nline.send(HELLO_WITH_ALL)"));
    // On a machine that is busy the worker may take the first order before it takes this connection.
    wait_for("an order that reaches it", PATIENCE, || {
        honest_is_well(&node);
        let _ = node.http().run("hostile", &json!(null));
        (node.model("hostile").restarts > 0).then_some(())
    });
    ended_and_came_back(&node, "hostile", "did not answer a command to move its GPU memory within `evict-timeout`");
    node.stop();
}

#[test]
fn a_model_with_a_silent_connection_is_ended_when_its_memory_must_return() {
    let node = node();
    let _ = run(&node, "hostile", &format!("{CONNECT}\nline.send(HELLO)"));
    // A model that reports no memory is not asked to give any: the others get their room.
    honest_is_well(&node);
    assert_eq!(node.model("hostile").restarts, 0);
    // Back is for all.
    let answer = node.http().run("hostile", &json!(null));
    assert!([200, 502, 503].contains(&answer.status), "{}", answer.text());
    ended_and_came_back(&node, "hostile", "did not answer a command to move its GPU memory within `evict-timeout`");
    honest_is_well(&node);
    node.stop();
}

#[test]
fn a_silent_connection_is_ignored() {
    let node = node();
    let _ = run(&node, "hostile", CONNECT);
    for _ in 0..3 {
        honest_is_well(&node);
        ask(&node, "hostile");
    }
    assert_eq!(node.model("hostile").restarts, 0, "{}", node.log());
    node.stop();
}

#[test]
fn a_stopped_model_is_ended_when_another_needs_its_room() {
    let node = node();
    process::stop(node.engine("hostile").unwrap());
    honest_is_well(&node);
    ended_and_came_back(&node, "hostile", "did not answer a command to move its GPU memory within `evict-timeout`");
    node.stop();
}

#[test]
fn invalid_messages_only_disconnect_their_process() {
    let node = node();
    for packets in ["b'nonsense'", "HELLO[:-1]", "HELLO + b'x' * 4096", "HELLO, HELLO", "done(1)", "HELLO, done(1)"] {
        let _ =
            run(&node, "hostile", &format!("{CONNECT}\nfor packet in [{packets}]:\n    line.send(packet)\n{CLOSED}"));
        honest_is_well(&node);
        ask(&node, "hostile");
    }
    assert_eq!(node.model("hostile").restarts, 0, "{}", node.log());
    assert!(
        node.omnictl(["logs", "hostile"]).stdout.contains("is disconnected"),
        "{:?}",
        node.omnictl(["logs", "hostile"])
    );
    node.stop();
}

#[test]
fn false_reports_gain_a_model_nothing() {
    let node = node();
    let lies = format!(
        "{CONNECT}
import threading
line.send(HELLO)
def answer():
    while order := line.recv(64):
        number = struct.unpack('<3Q', order)[0]
        line.send(done(number, moved=2**64 - 1, managed=2**63, resident=2**64 - 1))
threading.Thread(target=answer, daemon=True).start()"
    );
    let _ = run(&node, "hostile", &lies);
    for _ in 0..5 {
        ask(&node, "honest");
        assert!(node.cards()[0].state().unwrap().used() <= 64 * MIB);
        ask(&node, "hostile");
        assert!(node.cards()[0].state().unwrap().used() <= 64 * MIB);
    }
    honest_is_well(&node);
    let gpus = node.gpus();
    assert!(gpus.gpus[0].instances.iter().all(|one| one.resident_bytes <= one.limit_bytes), "{gpus:?}");
    let moved = node.metric("omni_gpu_swap_bytes_total{direction=\"out\"}");
    assert!(moved.unwrap() < (1_u64 << 40) as f64, "{moved:?}");
    node.stop();
}

/// The file that the shims of one instance share is the model's own to spoil.
#[test]
fn a_corrupted_or_truncated_account_harms_only_its_model() {
    let node = node();
    let ways = [
        "open('/gpu/account', 'r+b').write(b'\\xff' * 36864)",
        "open('/gpu/account', 'r+b').write(os.urandom(36864))",
        "open('/gpu/account', 'r+b').write(bytes(36864))",
        "os.truncate('/gpu/account', 100)",
        "os.truncate('/gpu/account', 0)",
    ];
    for way in ways {
        // The model may end or go on.
        let spoiled = node.http().run(
            "hostile",
            &json!(format!("{way}\nattempt('cuMemAlloc_v2', ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(4))")),
        );
        assert!([200, 500, 502].contains(&spoiled.status), "{way}: {}", spoiled.text());
        honest_is_well(&node);
        let engine = node.engine("hostile");
        if let Some(engine) = engine.filter(|engine| process::is_alive(*engine)) {
            // Killed by the test, if nothing else ended it.
            let _ = kill(engine, Signal::SIGKILL);
            wait_for("its end", PATIENCE, || (node.engine("hostile") != Some(engine)).then_some(()));
        }
        wait_for("the next instance", PATIENCE, || {
            (node.http().run("hostile", &json!(null)).status == 200).then_some(())
        });
        ask(&node, "hostile");
        assert!(node.cards()[0].state().unwrap().used() <= 64 * MIB, "{way}");
        let gpus = node.gpus();
        assert_eq!((gpus.gpus[0].committed_bytes, gpus.gpus[0].resident_bytes <= 64 * MIB), (80 * MIB, true), "{way}");
    }
    node.stop();
}

/// The shim needs no variable, and none leads past it: whatever environment a child gets, the limit holds.
#[test]
fn no_environment_lifts_the_limit() {
    let node = node();
    let code = r#"
import subprocess, sys
CHILD = '''
import ctypes
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError:
    print("none")
    raise SystemExit
context, address, device = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0 and cuda.cuCtxSetCurrent(context) == 0
print(*(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) for size in (1, 1 << 30)))
'''
found = {}
paths = {"LD_LIBRARY_PATH": os.environ["LD_LIBRARY_PATH"]}
lifted = {"OMNI_GPU_LIMIT_BYTES": str(1 << 50), "OMNI_GPU_MODE": "device", "OMNI_GPU_ACCOUNT": "/tmp/own", "OMNI_GPU_DRIVER": "/tmp"}
for name, environment in {
    "nothing": {}, "paths": paths, "another preload": {**paths, "LD_PRELOAD": "libm.so.6"}, "lifted": {**paths, **lifted},
}.items():
    child = subprocess.run([sys.executable, "-c", CHILD], env=environment, stdout=subprocess.PIPE, text=True)
    found[name] = child.stdout.split()
# Which other C libraries would read, and fail: glibc's own file is in its place.
found["preload"] = [os.environ.get("LD_PRELOAD"), open("/etc/ld.so.preload").read()]
tell(**found)
"#;
    let found = run(&node, "hostile", code);
    // All of the limit is taken: not one byte more.
    for with_paths in ["paths", "another preload", "lifted"] {
        assert_eq!(found[with_paths], json!(["2", "2"]), "{found}");
    }
    // The dynamic linker may not look where this machine has its driver.
    assert!([json!(["2", "2"]), json!(["none"])].contains(&found["nothing"]), "{found}");
    assert_eq!(found["preload"], json!([null, "/gpu/libomni_cuda.so\n"]));
    honest_is_well(&node);
    node.stop();
}

/// A set-user-id program of the machine is a program like any other in a sandbox: it gains no right, so the dynamic linker
/// treats it like any other too, and the shim is in it.
#[test]
fn a_setuid_program_gains_no_privilege_and_keeps_the_shim() {
    let node = node();
    let code = r#"
import glob, stat, subprocess
programs = [path for path in sorted(glob.glob("/usr/bin/*")) if os.stat(path).st_mode & stat.S_ISUID and os.stat(path).st_uid == 0]
# Answered by the dynamic linker, which would not for a program with other rights than its caller's.
asked = {"LD_SHOW_AUXV": "1", "LD_TRACE_LOADED_OBJECTS": "1"}
said = {path: subprocess.run([path], env=asked, stdout=subprocess.PIPE, text=True).stdout.split() for path in programs}
after = lambda words, name: words[words.index(name) + 1] if name in words else None
tell(
    own=str(os.geteuid()),
    programs=len(programs),
    rights=sorted({(after(words, "AT_SECURE:"), after(words, "AT_UID:"), after(words, "AT_EUID:")) for words in said.values()}),
    without=[path for path, words in said.items() if "/gpu/libomni_cuda.so" not in words],
)
"#;
    let found = run(&node, "hostile", code);
    assert!(found["programs"].as_u64() > Some(0), "this machine has no set-user-id program to try: {found}");
    assert_eq!(found["rights"], json!([["0", found["own"], found["own"]]]), "{found}");
    assert!(found["own"] != "0" && found["without"] == json!([]), "{found}");
    honest_is_well(&node);
    node.stop();
}

/// A model that bypasses the shim is found by what the driver reports of its processes.
#[test]
fn a_model_over_its_limit_past_the_shim_is_ended() {
    let node = node();
    let code = format!(
        r#"
import subprocess, sys
CHILD = {}
command = [sys.executable, "-c", CHILD, str(2500 << 20)]
child = subprocess.Popen(command, env={{}}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
sys.kept = child  # its input stays open
tell(said=child.stdout.readline().strip())
"#,
        json!(PAST_THE_SHIM)
    );
    let said = run(&node, "hostile", &code)["said"].clone();
    assert_eq!(said, "0", "nothing in the model stops it");
    ended_and_came_back(&node, "hostile", "more than its limit allows");
    honest_is_well(&node);
    assert!(matches!(place(&node, "hostile"), Some((Residency::Evicted, 24))), "{:?}", place(&node, "hostile"));
    node.stop();
}
