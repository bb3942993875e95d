//! Memory as a model sees it is its own limit and its own use: in `/proc/meminfo`, to `free`, to psutil, in children,
//! and as the numbers change. The host's file is unchanged.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_tests::Node;
use omni_tests::probe::{self, assert_found, probe};
use serde_json::{Value, json};
use std::fs;

const SEVEN_GIB: u64 = 7 << 30;

/// `MemTotal` of the host, in kB.
fn host_total() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let total = text.strip_prefix("MemTotal:").and_then(|rest| rest.split_whitespace().next());
    total.and_then(|kib| kib.parse().ok()).expect("the first line")
}

#[test]
fn the_limit_is_the_machine_and_the_host_does_not_change() {
    let before = host_total();
    let node = Node::builder()
        .example("memory")
        .model(
            "probe",
            &[
                ("model.py", probe::MODEL),
                ("requirements.txt", "psutil==7.2.2\n"),
                ("omni.toml", "schema = 1\n[resources]\nmemory = \"7GiB\"\n"),
            ],
        )
        .model("small", &[("model.py", probe::MODEL), ("omni.toml", "schema = 1\n[resources]\nmemory = \"96MiB\"\n")])
        .start();

    // The example, which eats some of it and gives it back.
    let look = |eat: u64| {
        let answer = node.http().run("memory", &json!({"eat_mib": eat}));
        assert_eq!(answer.status, 200, "{}\n{}", answer.text(), node.log());
        answer.json()["result"].clone()
    };
    let kib = |seen: &Value, name: &str| seen["meminfo"][name].as_u64().unwrap_or_else(|| panic!("{name}: {seen}"));
    let (rested, fed, rested_again) = (look(0), look(300), look(0));
    for seen in [&rested, &fed] {
        assert_eq!((kib(seen, "MemTotal"), &seen["psutil"]["total"]), (SEVEN_GIB >> 10, &json!(SEVEN_GIB)));
        assert!(kib(seen, "MemFree") <= kib(seen, "MemAvailable") && kib(seen, "MemAvailable") < SEVEN_GIB >> 10);
    }
    let (eaten, slack) = (300 << 10, 20 << 10);
    for name in ["MemFree", "MemAvailable"] {
        let gone = kib(&rested, name) - kib(&fed, name);
        assert!((eaten - slack..eaten + slack).contains(&gone), "{name} fell by {gone} kB: {rested} {fed}");
        assert!(kib(&rested_again, name) > kib(&rested, name) - slack, "{name} came back: {rested_again}");
    }
    assert_eq!(node.http().run("memory", &json!({"eat_mib": "much"})).status, 400);

    let code = r#"
import subprocess, warnings
tell(first=open("/proc/meminfo").readline().split())
def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    return [done.returncode, done.stdout.split(), done.stderr]
attempt("free", lambda: run("free", "-m")[1][6:8])
attempt("strict", lambda: run(sys.executable, "-W", "error", "-c", "import psutil; print(psutil.virtual_memory().total, psutil.swap_memory().total)"))
with warnings.catch_warnings():
    warnings.simplefilter("error")
    import psutil
    seen = psutil.virtual_memory()
tell(total=seen.total, sane=0 < seen.used < seen.total and seen.free <= seen.available <= seen.total)
# Read as programs do: in pieces, from the start again, by size, and only read.
def pieces():
    with open("/proc/meminfo", "rb", buffering=0) as file:
        text = b"".join(iter(lambda: file.read(7), b""))
        file.seek(0)
        return text == file.read(1 << 16)
attempt("pieces", pieces)
tell(size=os.stat("/proc/meminfo").st_size, mode=oct(os.stat("/proc/meminfo").st_mode))
attempt("write", lambda: open("/proc/meminfo", "r+"))
attempt("dd", lambda: run("dd", "if=/proc/meminfo", "bs=10", "count=1", "status=none")[1])
"#;
    let expected = json!({
        "first": ["MemTotal:", "7340032", "kB"], "free": ["Mem:", "7168"], "strict": [0, ["7516192768", "0"], ""],
        "total": SEVEN_GIB, "sane": true, "pieces": true, "size": 0, "mode": "0o100444", "write": "EROFS",
        "dd": ["MemTotal:"],
    });
    assert_found(&node, "probe", code, &expected);

    // Another model sees another machine.
    let seen = probe(&node, "small", "tell(first=open('/proc/meminfo').readline())");
    assert_eq!(seen["first"], format!("MemTotal: {:>14} kB\n", 96 << 10));
    assert_eq!(host_total(), before, "the host's own");
    node.stop();
}
