//! Processors as a model sees them are those of its own limit: in `/proc`, in `/sys`, to `nproc`, to Python and to the
//! libraries that size their pools by them. The host's files are unchanged.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_tests::Node;
use omni_tests::probe::{self, assert_found, probe};
use serde_json::{Value, json};
use std::fs;

/// Results of all ways to count processors.
const COUNT: &str = r#"
import glob, subprocess
def run(*command, **env):
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env}).stdout.strip()
clean = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "PYTHON_CPU_COUNT")}
def without(code):
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean).stdout)
tell(
    nproc=int(run("nproc")), cpu_count=os.cpu_count(), process=getattr(os, "process_cpu_count", os.cpu_count)(),
    online=os.sysconf("SC_NPROCESSORS_ONLN"), conf=os.sysconf("SC_NPROCESSORS_CONF"),
    cpuinfo=sum(line.startswith("processor") for line in open("/proc/cpuinfo")),
    stat=sum(line[:3] == "cpu" and line[3].isdigit() for line in open("/proc/stat")),
    dirs=len(glob.glob("/sys/devices/system/cpu/cpu[0-9]*")),
    clean=without("import os; print(os.cpu_count())"),
)
import psutil
tell(psutil=psutil.cpu_count(), cores=psutil.cpu_count(logical=False) <= psutil.cpu_count())
from threadpoolctl import threadpool_info
import numpy
tell(openblas=max(pool["num_threads"] for pool in threadpool_info()))
tell(unasked=without("import numpy, threadpoolctl; print(max(p['num_threads'] for p in threadpoolctl.threadpool_info()))"))
"#;

const NUMBERS: &str = r#"
lists = [open("/sys/devices/system/cpu/" + name).read() for name in ("online", "possible", "present")]
tell(same=len(set(lists)) == 1, mhz="cpu MHz" in open("/proc/cpuinfo").read())
tell(flags=any(line.startswith(("flags", "Features")) for line in open("/proc/cpuinfo")))
tell(swaps=open("/proc/swaps").read().split())
import time
def busy():
    first = [int(n) for n in open("/proc/stat").readline().split()[1:]]
    return first[0] + first[2], first[3]
before, until = busy(), time.process_time() + 0.5
while time.process_time() < until:
    pass
after = busy()
tell(used=after[0] - before[0] >= 45, sane=all(b >= 0 for b in after))
up = float(open("/proc/uptime").read().split()[0])
btime = next(int(line.split()[1]) for line in open("/proc/stat") if line.startswith("btime"))
tell(young=up < 300, began=abs(time.time() - up - btime) < 5, load=len(os.getloadavg()))
with open("/proc/stat") as file:
    text = file.read()
    for _ in range(1000): pass
    file.seek(0)
    tell(kept=file.read() == text)
for path in ("/proc/cpuinfo", "/proc/stat", "/proc/uptime", "/sys/devices/system/cpu/online"):
    attempt(path, lambda: open(path, "r+"))
tell(author=[os.environ.get("OMP_NUM_THREADS"), os.environ.get("PYTHON_CPU_COUNT")])
tell(left=os.listdir("/run"))
"#;

fn manifest(cpus: &str) -> String {
    format!("schema = 1\n[resources]\nmemory = \"1GiB\"\ncpus = {cpus}\n")
}

#[test]
fn all_ways_to_count_processors_give_the_limit() {
    let files = ["/sys/devices/system/cpu/online", "/proc/swaps"];
    let before = files.map(|file| fs::read_to_string(file).unwrap());
    let host = std::thread::available_parallelism().unwrap().get();
    let packages = ("requirements.txt", "numpy==2.4.6\npsutil==7.2.2\nthreadpoolctl==3.6.0\n");
    let node = Node::builder()
        .model("one", &[("model.py", probe::MODEL), packages, ("omni.toml", &manifest("1.0"))])
        .model("part", &[("model.py", probe::MODEL), packages, ("omni.toml", &manifest("1.2"))])
        .model("many", &[("model.py", probe::MODEL), packages, ("omni.toml", &manifest("500.0"))])
        .start();
    for (model, count) in [("one", 1), ("part", 2.min(host)), ("many", host)] {
        let seen = probe(&node, model, COUNT);
        let other: Vec<_> = seen.iter().filter(|(name, value)| *name != "cores" && **value != json!(count)).collect();
        assert!(other.is_empty() && seen.len() == 13, "{model} has {count}: {seen:?}");
        assert_eq!(seen["cores"], json!(true));
    }
    assert_eq!(files.map(|file| fs::read_to_string(file).unwrap()), before, "the host's own");
    assert!(!fs::read_to_string("/proc/self/mountinfo").unwrap().contains(" /proc/cpuinfo "));
    node.stop();
}

#[test]
fn the_numbers_are_the_instances_own() {
    let own = format!("{}[env]\nOMP_NUM_THREADS = \"7\"\n", manifest("1.0"));
    let node = Node::builder().model("probe", &[("model.py", probe::MODEL), ("omni.toml", &own)]).start();
    let expected: Value = json!({
        "same": true, "mhz": false, "flags": true, "swaps": ["Filename", "Type", "Size", "Used", "Priority"],
        "used": true, "sane": true, "young": true, "began": true, "load": 3, "kept": true,
        "/proc/cpuinfo": "EROFS", "/proc/stat": "EROFS", "/proc/uptime": "EROFS",
        "/sys/devices/system/cpu/online": "EROFS", "author": ["7", "1"], "left": [],
    });
    assert_found(&node, "probe", NUMBERS, &expected);
    node.stop();
}
