//! Stuck parts are found in bounded time and repaired: the scheduler itself, the launcher, a worker, an engine, a
//! connection.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use omni_control_api::State;
use omni_tests::process::{self, is_alive};
use omni_tests::{Node, PATIENCE, wait_for};
use serde_json::json;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::thread;

const ECHO: &str = "def handle_request(request, context):\n    return request.body.json\n";
/// Asked often, so that a test need not be long.
const OFTEN: &str = "schema = 1\n[scaling]\nidle-timeout = \"1h\"\n[timeouts]\nhealthcheck = \"1s\"\n";

fn answers(node: &Node, model: &str) {
    wait_for("an answer", PATIENCE, || (node.http().run(model, &json!(7)).status == 200).then_some(()));
}

/// The engine of the model once it is another one than that, and the model's last exit.
fn replaced(node: &Node, model: &str, engine: Pid) -> String {
    wait_for("another engine", PATIENCE * 2, || {
        let model = node.model(model);
        let is_another = model.instances.iter().any(|i| i.state == State::Ready && i.pid != Some(engine.as_raw()));
        is_another.then(|| model.last_exit.unwrap_or_default())
    })
}

fn restarts(node: &Node, model: &str, reason: &str) -> bool {
    let line = format!("omni_instance_restarts_total{{model=\"{model}\",reason=\"{reason}\"}} 1");
    node.admin().get("/metrics").text().contains(&line)
}

/// The threads of the runtime are frozen, as by a lock that is never released; the rest of the process goes on.
#[test]
fn a_scheduler_whose_runtime_hangs_ends_and_its_successor_serves_on() {
    let mut node = Node::builder().hold_listeners().model("one", &[("model.py", ECHO)]).start();
    answers(&node, "one");
    let engine = node.engine("one").expect("a process");
    // On few cores the runtime is the main thread; on many it has separate threads.
    let main = node.pid();
    let tasks = fs::read_dir(format!("/proc/{main}/task")).unwrap().flatten();
    let threads: Vec<Pid> = tasks
        .filter(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("tokio-")))
        .map(|task| Pid::from_raw(task.file_name().to_string_lossy().parse().unwrap()))
        .collect();
    for thread in threads.iter().chain([&main]) {
        ptrace::seize(*thread, ptrace::Options::empty()).expect("seized");
        ptrace::interrupt(*thread).expect("interrupted");
        // The main thread's end is reported to the parent of the process, which must get nothing else.
        waitpid(*thread, Some(WaitPidFlag::__WALL)).expect("stopped");
    }
    let flags = Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG);
    for thread in threads {
        // The tracer that froze a thread has to take note of its end.
        wait_for("the watchdog", PATIENCE, || {
            let told = waitpid(thread, flags);
            let lives =
                matches!(told, Ok(WaitStatus::StillAlive | WaitStatus::Stopped(..) | WaitStatus::PtraceEvent(..)));
            (!lives).then_some(())
        });
    }
    let status = node.wait_for_end();
    assert_eq!(status.signal(), Some(Signal::SIGABRT as i32), "{}", node.log());
    let log = node.log();
    let said = log.lines().find(|line| line.contains("stuck: no turn within")).unwrap_or_else(|| panic!("{log}"));
    assert!(said.contains("the runtime"), "{said}");

    node.start_again();
    answers(&node, "one");
    assert_eq!(node.engine("one"), Some(engine), "the model was taken over");
    node.stop();
}

#[test]
fn a_launcher_that_hangs_is_started_again_and_no_model_is_touched() {
    let node = Node::builder().model("one", &[("model.py", ECHO)]).model("cold", &[("model.py", ECHO)]).start();
    answers(&node, "one");
    let (engine, launcher) = (node.engine("one"), node.launcher().expect("a launcher"));
    process::stop(launcher);
    answers(&node, "one");
    answers(&node, "cold"); // asks the one that hangs, then the next one
    assert!(!is_alive(launcher));
    assert_eq!(node.engine("one"), engine);
    assert_eq!(node.model("cold").restarts, 0, "nobody died of it\n{}", node.log());
    assert!(node.log().contains("the launcher's main loop does not turn"), "{}", node.log());
    node.stop();
}

#[test]
fn a_worker_that_hangs_is_killed_and_its_model_started_again() {
    let node =
        Node::builder().model("one", &[("model.py", ECHO), ("omni.toml", "[scaling]\nmin-instances = 1\n")]).start();
    answers(&node, "one");
    let engine = node.engine("one").expect("a process");
    let worker = node.worker(engine).expect("its worker");
    process::stop(worker);
    let last_exit = replaced(&node, "one", engine);
    assert!(last_exit.contains("its worker did not answer within"), "{last_exit}");
    assert!(!is_alive(worker) && !is_alive(engine));
    assert!(restarts(&node, "one", "worker"));
    answers(&node, "one");
    node.stop();
}

#[test]
fn a_lost_connection_to_a_worker_is_made_again() {
    let node = Node::builder().model("one", &[("model.py", ECHO)]).start();
    answers(&node, "one");
    let engine = node.engine("one").expect("a process");
    let id = node.instance("one").expect("an instance").id;
    // A worker serves one scheduler, the newest. This one comes, says nothing, and goes.
    let stranger = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    let path = node.control_socket().with_file_name("instances").join(format!("{id}.sock"));
    wait_for("a connection that has held for a second", PATIENCE, || {
        (node.instance("one")?.age_seconds > 3.0).then_some(())
    });
    connect(stranger.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
    wait_for("the scheduler to be back", PATIENCE, || {
        node.log().contains("connected to the worker again").then_some(())
    });
    answers(&node, "one");
    let top = node.omnictl(["stop", "one", "--wait"]);
    assert_eq!(top.code, 0, "it hears its worker: {top:?}");
    let model = node.model("one");
    assert_eq!((model.restarts, model.last_exit), (0, None), "{}", node.log());
    assert!(!is_alive(engine));
    node.stop();
}

#[test]
fn a_control_socket_that_was_removed_is_made_again() {
    let mut node = Node::builder().model("one", &[("model.py", ECHO)]).start();
    let path = node.control_socket();
    let reached = || {
        wait_for("the control socket", PATIENCE, || (node.omnictl(["list"]).code == 0).then_some(()));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o660);
    };
    reached();
    let own = path.with_file_name("control").join("control.sock");
    for removed in [&path, &own] {
        fs::remove_file(removed).unwrap();
        reached();
    }
    fs::remove_file(&own).unwrap();
    fs::write(&own, "something else").unwrap();
    reached();
    // A successor gets the socket that is there now.
    let before = node.pid();
    node.upgrade();
    wait_for("the scheduler before to end", PATIENCE, || (!is_alive(before)).then_some(()));
    assert_eq!(node.omnictl(["list"]).code, 0, "{}", node.log());
    node.stop();
}

#[test]
fn an_idle_engine_that_hangs_is_replaced() {
    let node = Node::builder().model("one", &[("model.py", ECHO), ("omni.toml", OFTEN)]).start();
    answers(&node, "one");
    let engine = node.engine("one").expect("a process");
    process::stop(engine);
    let last_exit = replaced(&node, "one", engine);
    assert!(last_exit.contains("did not answer its healthcheck within 1s"), "{last_exit}");
    assert!(restarts(&node, "one", "healthcheck"));
    answers(&node, "one");
    node.stop();
}

/// A thread of the model's own that never lets go of the interpreter, while no request runs.
#[test]
fn an_idle_engine_whose_interpreter_is_held_is_replaced() {
    const HOLD: &str = r#"
import ctypes, threading

def hold():
    ctypes.PyDLL(None).pause()      # called with the interpreter's lock

def handle_request(request, context):
    if request.body.json == "hold":
        threading.Timer(0.3, hold).start()
    return request.body.json
"#;
    for head in ["", "concurrency = 4\n"] {
        let manifest = OFTEN.replace("[scaling]\n", &format!("[scaling]\n{head}"));
        let node = Node::builder().model("one", &[("model.py", HOLD), ("omni.toml", &manifest)]).start();
        answers(&node, "one");
        let engine = node.engine("one").expect("a process");
        assert_eq!(node.http().run("one", &json!("hold")).status, 200);
        let last_exit = replaced(&node, "one", engine);
        assert!(last_exit.contains("did not answer its healthcheck"), "{last_exit}");
        node.stop();
    }
}

#[test]
fn a_model_whose_healthcheck_fails_is_replaced() {
    const SICK: &str = r#"
sick = False

def healthcheck(context):
    if sick:
        raise OSError("no disk")

def handle_request(request, context):
    global sick
    sick = request.body.json == "sick"
    return request.body.json
"#;
    for define in ["def", "async def"] {
        let code = SICK.replace("def ", &format!("{define} "));
        let node = Node::builder().model("one", &[("model.py", &code), ("omni.toml", OFTEN)]).start();
        answers(&node, "one");
        let engine = node.engine("one").expect("a process");
        assert_eq!(node.http().run("one", &json!("sick")).status, 200);
        let last_exit = replaced(&node, "one", engine);
        assert!(last_exit.contains("its healthcheck failed: OSError: no disk"), "{last_exit}");
        assert!(node.omnictl(["logs", "one"]).stdout.contains("in healthcheck"), "the author finds the traceback");
        answers(&node, "one");
        node.stop();
    }
}

/// A handler takes far longer than checks are apart, and holds the interpreter all the while.
#[test]
fn busy_instances_are_not_checked() {
    const SLOW: &str = "import ctypes\ndef handle_request(request, context):\n    ctypes.PyDLL(None).sleep(4 if request.body.json == 'slow' else 0)\n    return request.body.json\n";
    let node = Node::builder().model("one", &[("model.py", SLOW), ("omni.toml", OFTEN)]).start();
    answers(&node, "one");
    let engine = node.engine("one");
    thread::scope(|scope| {
        let slow = scope.spawn(|| node.http().run("one", &json!("slow")).status);
        // The request waits behind the slow one.
        wait_for("the slow one to run", PATIENCE, || (node.model("one").in_flight == 1).then_some(()));
        assert_eq!(node.http().run("one", &json!(1)).status, 200);
        assert_eq!(slow.join().unwrap(), 200);
    });
    let model = node.model("one");
    assert_eq!((node.engine("one"), model.restarts, model.last_exit), (engine, 0, None), "{}", node.log());
    node.stop();
}

/// A busy instance has the deadline of its request, and `cancel-grace`.
#[test]
fn an_engine_that_hangs_in_a_request_is_replaced_after_its_deadline() {
    let manifest = "schema = 1\n[timeouts]\nrequest = \"1s\"\ncancel-grace = \"300ms\"\n";
    let hang = "import ctypes\ndef handle_request(request, context):\n    if request.body.json == 'hang':\n        ctypes.PyDLL(None).pause()\n    return request.body.json\n";
    let node = Node::builder().model("one", &[("model.py", hang), ("omni.toml", manifest)]).start();
    answers(&node, "one");
    let engine = node.engine("one").expect("a process");
    assert_eq!(node.http().run("one", &json!("hang")).status, 504);
    let last_exit = replaced(&node, "one", engine);
    assert!(last_exit.contains("a handler ignored its cancellation"), "{last_exit}");
    answers(&node, "one");
    node.stop();
}
