//! Models with a GPU, started by the launcher: what they get, what they are limited to, and which requests are refused.
//! The driver, the shim and the device files are empty stand-ins here: what they do is tested elsewhere.

use super::node::{Node, Scheduler, request};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use omni_engine_protocol::packet::{recv_packet, send_packet};
use omni_node_protocol::id::{EnvironmentKey, InstanceId, SnapshotDigest};
use omni_node_protocol::instance::{FromWorker, PROTOCOL, ToWorker};
use omni_node_protocol::launcher::{GpuMode, GpuSpec, StartSpec};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const UUID: &str = "GPU-01234567-89ab-cdef-0123-456789abcdef";
const MIB: u64 = 1 << 20;

/// Tells what it sees, and ends.
const MODEL: &str = r#"
import json, os, sys

def tell(**facts):
    print(json.dumps(facts), flush=True)

def files(top):
    return sorted(os.path.join(d, f) for d, _, names in os.walk(top) for f in names)

tell(gpu=files("/gpu"), devices=sorted(n for n in os.listdir("/dev") if "nvidia" in n))
tell(env={k: v for k, v in os.environ.items() if k.startswith(("LD_", "OMNI_GPU", "CUDA"))})
tell(total=open("/proc/meminfo").readline().split()[1])
tell(preloaded=any("/gpu/libomni_cuda.so" in line for line in open("/proc/self/maps")))
sys.stdout.flush()
os._exit(0)
"#;

/// A node whose programs, driver and device files are its own.
pub(crate) struct GpuNode {
    pub(crate) node: Node,
    programs: tempfile::TempDir,
}

impl GpuNode {
    fn start() -> Self {
        let mut this = Self::stopped();
        this.node.run(&[]);
        this
    }

    fn stopped() -> Self {
        let this = Self::bare();
        for name in ["libomni_cuda.so", "libomni_cuda_proxy.so"] {
            library(&this.programs.path().join(name));
        }
        let (driver, dev) = (this.node.path("driver"), this.node.path("dev"));
        fs::create_dir(&driver).unwrap();
        library(&driver.join("libcuda.so.550.1"));
        for (link, to) in [("libcuda.so.1", "libcuda.so.550.1"), ("libcuda.so", "libcuda.so.1")] {
            std::os::unix::fs::symlink(to, driver.join(link)).unwrap();
        }
        for name in ["libnvidia-ml.so.1", "libnvidia-encode.so.1"] {
            library(&driver.join(name));
        }
        fs::create_dir(&dev).unwrap();
        for name in ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"] {
            device(&dev.join(name));
        }
        this
    }

    /// With the simulated driver, two of its cards, and the real shim.
    pub(crate) fn simulated() -> Self {
        let mut this = Self::bare();
        for name in ["libomni_cuda.so", "libomni_cuda_proxy.so"] {
            fs::copy(built(name), this.programs.path().join(name)).unwrap();
        }
        let (driver, dev) = (this.node.path("driver"), this.node.path("dev"));
        fs::create_dir(&driver).unwrap();
        fs::copy(built("libcuda_sim.so"), driver.join("libcuda.so.1")).unwrap();
        fs::hard_link(driver.join("libcuda.so.1"), driver.join("libnvidia-ml.so.1")).unwrap();
        let arguments = ["--gpus", "2", "--memory", "1GiB"];
        let made = Command::new(built("cuda-sim-card")).arg("create").arg(&dev).args(arguments).status().unwrap();
        assert!(made.success());
        this.node.run(&[]);
        this
    }

    fn bare() -> Self {
        // Where the programs can be linked to instead of copied.
        let programs = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for program in [env!("CARGO_BIN_EXE_omni-launcher"), env!("CARGO_BIN_EXE_omni-worker")] {
            fs::hard_link(program, programs.path().join(Path::new(program).file_name().unwrap())).unwrap();
        }
        let mut node = Node::stopped();
        node.programs = Some(programs.path().to_owned());
        let (driver, dev) = (node.path("driver"), node.path("dev"));
        node.configure(&format!("[gpu]\ndriver-dir = {driver:?}\ndevice-dir = {dev:?}\n"));
        Self { node, programs }
    }

    pub(crate) fn prepared(&self, model: &str) -> (Scheduler, SnapshotDigest, EnvironmentKey) {
        let scheduler = self.node.connect();
        self.node.publish("m", &[("model.py", model)]);
        let snapshot = scheduler.snapshot_of("m");
        let environment = scheduler.prepare("m", &snapshot).unwrap();
        (scheduler, snapshot, environment)
    }

    /// Log of an instance's model until its end.
    pub(crate) fn facts(&self, id: &InstanceId) -> BTreeMap<String, Value> {
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
        let patience = TimeVal::seconds(super::node::PATIENCE.as_secs().cast_signed());
        setsockopt(&socket, sockopt::ReceiveTimeout, &patience).unwrap();
        let address = UnixAddr::new(&self.node.path(&format!("run/instances/{id}.sock"))).unwrap();
        connect(socket.as_raw_fd(), &address).unwrap();
        send_packet(&socket, &ToWorker::Hello { protocol: PROTOCOL, oldest: None, log_seen: 0 }, &[]).unwrap();
        let mut facts = BTreeMap::new();
        loop {
            match recv_packet(&socket).unwrap().0 {
                FromWorker::Log(line) => match serde_json::from_str::<BTreeMap<String, Value>>(&line.text) {
                    Ok(fact) => facts.extend(fact),
                    Err(_) => eprintln!("{}", line.text),
                },
                FromWorker::Exited(_) => return facts,
                _ => {}
            }
        }
    }
}

/// Output of another package of the workspace, beside our own programs.
fn built(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_omni-worker")).with_file_name(name);
    let packages = "omni-cuda, omni-cuda-proxy, omni-cuda-sim and omni-cuda-card";
    assert!(path.exists(), "{} is not there: build the packages {packages}", path.display());
    path
}

/// A library without anything in it, which the linker loads.
fn library(path: &Path) {
    let arguments = ["-shared", "-nostdlib", "-x", "c", "/dev/null", "-o"];
    assert!(Command::new("cc").args(arguments).arg(path).status().unwrap().success());
}

fn device(path: &Path) {
    fs::write(path, "").unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
}

fn gpu() -> GpuSpec {
    GpuSpec { uuid: UUID.to_owned(), minor: 1, limit_bytes: 64 * MIB, mode: GpuMode::Unified }
}

pub(crate) fn id(text: &str) -> InstanceId {
    InstanceId::parse(text).unwrap()
}

#[test]
fn a_model_gets_its_card_behind_the_shim() {
    let gpus = GpuNode::start();
    let (scheduler, snapshot, environment) = gpus.prepared(MODEL);
    let mut spec = request("00000000000a", "m", &snapshot, &environment);
    spec.gpu = Some(gpu());
    spec.cache_bytes = 8 * MIB;
    // The scheduler's own check keeps these out; the launcher's variables win in any case.
    spec.env =
        ["LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"].map(|key| (key.into(), "x".into())).into();
    scheduler.start(spec).unwrap();
    let facts = gpus.facts(&id("00000000000a"));
    let inside = [
        "/gpu/account",
        "/gpu/control.sock",
        "/gpu/driver/libcuda.so.1",
        "/gpu/driver/libcuda.so.550.1",
        "/gpu/driver/libnvidia-ml.so.1",
        "/gpu/libcuda.so.1",
        "/gpu/libomni_cuda.so",
    ];
    assert_eq!(facts["gpu"], json!(inside));
    assert_eq!(facts["devices"], json!(["nvidia-uvm", "nvidia1", "nvidiactl"]));
    let variables = json!({
        "CUDA_CACHE_PATH": "/cache/.nv",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": UUID,
        "LD_LIBRARY_PATH": "/gpu:/gpu/driver",
    });
    assert_eq!(facts["env"], variables);
    assert_eq!(facts["preloaded"], true);
    scheduler.gone(&id("00000000000a"));
    assert_eq!(gpus.node.traces(), Vec::<String>::new());
}

#[test]
fn a_model_without_a_gpu_gets_none_of_it_on_such_a_node() {
    let gpus = GpuNode::start();
    let (scheduler, snapshot, environment) = gpus.prepared(MODEL);
    scheduler.start(request("00000000000a", "m", &snapshot, &environment)).unwrap();
    let facts = gpus.facts(&id("00000000000a"));
    assert_eq!((&facts["gpu"], &facts["devices"], &facts["env"]), (&json!([]), &json!([]), &json!({})));
    assert_eq!(facts["preloaded"], false);
}

#[test]
fn memory_of_the_group_has_room_for_gpu_memory_that_waits_there() {
    let gpus = GpuNode::start();
    // Stays until it is killed.
    let model = MODEL.replace("os._exit(0)", "import time\nwhile True: time.sleep(1)");
    let (scheduler, snapshot, environment) = gpus.prepared(&model);
    for (name, mode, expected) in
        [("00000000000a", GpuMode::Unified, 320 * MIB), ("00000000000b", GpuMode::Device, 256 * MIB)]
    {
        let mut spec = request(name, "m", &snapshot, &environment);
        spec.gpu = Some(GpuSpec { mode, ..gpu() });
        scheduler.start(spec).unwrap();
        let limits: Vec<u64> =
            gpus.node.groups().iter().filter(|dir| dir.ends_with(name)).filter_map(|group| limit(group)).collect();
        assert_eq!(limits, [expected]);
        scheduler.say(&omni_node_protocol::launcher::ToLauncher::Kill { instance: id(name) });
        scheduler.gone(&id(name));
    }
    assert_eq!(gpus.node.traces(), Vec::<String>::new());
    let mut spec = request("00000000000c", "m", &snapshot, &environment);
    spec.gpu = Some(gpu());
    gpus.node.publish("n", &[("model.py", MODEL)]);
    spec.snapshot = scheduler.snapshot_of("n");
    scheduler.start(spec).unwrap();
    assert_eq!(gpus.facts(&id("00000000000c"))["total"], (256 * 1024).to_string(), "what it sees is `memory` alone");
}

fn limit(group: &Path) -> Option<u64> {
    let text = ["memory.max", "memory.limit_in_bytes"]
        .iter()
        .find_map(|name| fs::read_to_string(group.join("model").join(name)).ok())?;
    text.trim().parse().ok()
}

#[test]
fn unavailable_gpu_files_are_refused_with_advice() {
    let mut gpus = GpuNode::start();
    let (scheduler, snapshot, environment) = gpus.prepared(MODEL);
    let ask = |scheduler: &Scheduler, change: &dyn Fn(&mut GpuSpec)| {
        let mut spec: StartSpec = request("00000000000a", "m", &snapshot, &environment);
        let mut gpu = gpu();
        change(&mut gpu);
        spec.gpu = Some(gpu);
        scheduler.start(spec).unwrap_err()
    };
    for (uuid, shown) in [("", "``"), ("0", "`0`"), ("GPU-1,GPU-2", "`GPU-1,GPU-2`"), ("all", "`all`")] {
        let message = ask(&scheduler, &|gpu| gpu.uuid = uuid.into());
        assert_eq!(message, format!("{shown} is not a card's uuid"));
    }
    let message = ask(&scheduler, &|gpu| gpu.minor = 254);
    assert!(message.contains("device file of 254 is not within 0 to 253"), "{message}");
    let message = ask(&scheduler, &|gpu| gpu.limit_bytes = 0);
    assert!(message.contains("GPU memory of 0 is not within"), "{message}");
    let message = ask(&scheduler, &|gpu| gpu.minor = 7);
    assert!(message.contains("/dev/nvidia7: load the driver's kernel modules"), "{message}");

    fs::set_permissions(gpus.node.path("dev/nvidiactl"), fs::Permissions::from_mode(0o660)).unwrap();
    let message = ask(&scheduler, &|_| ());
    assert!(message.contains("nvidiactl is not a device file that every user may read and write"), "{message}");
    device(&gpus.node.path("dev/nvidiactl"));
    fs::remove_file(gpus.node.path("driver/libcuda.so.550.1")).unwrap();
    let message = ask(&scheduler, &|_| ());
    assert!(message.contains("no libcuda.so.1 for this machine in /") && message.contains("driver-dir"), "{message}");

    gpus.node.end(nix::sys::signal::Signal::SIGTERM);
    fs::remove_file(gpus.programs.path().join("libomni_cuda_proxy.so")).unwrap();
    gpus.node.run(&[]);
    let scheduler = gpus.node.connect();
    let message = ask(&scheduler, &|_| ());
    assert!(message.contains("libomni_cuda_proxy.so is not in") && message.contains("same build"), "{message}");
    assert!(gpus.node.traces().is_empty() && gpus.node.groups().is_empty());
}
