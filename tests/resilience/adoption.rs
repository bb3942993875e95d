//! Deaths that models survive: scheduler, launcher, both; and the extent of a worker's death.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use omni_control_api::State;
use omni_tests::fault::Programs;
use omni_tests::process::{descriptors, is_alive};
use omni_tests::{Client, Node, PATIENCE, SERIAL, Stream, rounds, under_load, wait_for};
use serde_json::json;
use std::fs;
use std::io::{BufReader, Write};
use std::thread;
use std::time::{Duration, Instant};

const ASYNC: &[(&str, &str)] = &[
    (
        "model.py",
        "import asyncio\nasync def handle_request(request, context):\n    await asyncio.sleep(0.02)\n    return context.model\n",
    ),
    ("omni.toml", "schema = 1\n[scaling]\nconcurrency = 8\n"),
];
/// Far more than the second that adoption may take, for a machine that does other things too. The figure is printed.
const ADOPTED_WITHIN: Duration = Duration::from_secs(5);

fn run(model: &str) -> String {
    format!("/ai/run/{model}")
}

/// A request of the load: its time, and whether it was answered with 200.
#[derive(Debug, Clone)]
struct Asked {
    begun: Instant,
    ended: Instant,
    answer: Vec<u8>,
}

impl Asked {
    fn ok(&self) -> bool {
        self.answer.starts_with(b"HTTP/1.1 200 ")
    }

    fn ask(http: Client, model: &str) -> Self {
        let begun = Instant::now();
        let request = format!(
            "POST {} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: 4\r\n\r\nnull",
            run(model)
        );
        let answer = http.raw(request.as_bytes(), false);
        Self { begun, ended: Instant::now(), answer }
    }
}

#[test]
fn a_scheduler_that_is_killed_under_load_loses_only_what_is_in_flight() {
    let models = ["one", "two", "three"];
    let mut node =
        Node::builder().hold_listeners().model("one", SERIAL).model("two", SERIAL).model("three", ASYNC).start();
    for model in models {
        assert_eq!(node.http().post(&run(model), &json!(null)).status, 200);
    }
    let engines = models.map(|model| node.engine(model).expect("a process"));
    let http = node.http();
    let mut crashes: Vec<(Instant, Instant)> = Vec::new();
    let mut adopted = Vec::new();
    let ask = |client: usize| Asked::ask(http, models[client % models.len()]);
    let asked = under_load(2 * models.len(), ask, |load| {
        for _ in 0..rounds(20).max(3) {
            load();
            let begun = Instant::now();
            node.crash();
            crashes.push((begun, Instant::now()));
            let begun = Instant::now();
            node.start_again();
            for model in models {
                assert!(Asked::ask(http, model).ok(), "{model} after the crash\n{}", node.log());
            }
            adopted.push(begun.elapsed());
        }
    });
    let asked = asked.concat();

    assert_eq!(models.map(|model| node.engine(model).expect("a process")), engines, "the same processes");
    for model in models {
        let model = node.model(model);
        assert_eq!((model.state, model.restarts, &model.last_exit), (State::Ready, 0, &None), "{}", node.log());
    }
    let in_flight_at_a_crash =
        |asked: &Asked| crashes.iter().any(|(begun, ended)| asked.begun <= *ended && asked.ended >= *begun);
    let failed: Vec<&Asked> = asked.iter().filter(|asked| !asked.ok()).collect();
    for failed in &failed {
        assert!(in_flight_at_a_crash(failed), "{}", String::from_utf8_lossy(&failed.answer));
        assert!(failed.answer.is_empty(), "a crash is seen as a closed connection: {failed:?}");
    }
    // Six clients, one request each at a time.
    assert!(failed.len() <= crashes.len() * 6, "{} of {} failed", failed.len(), asked.len());
    let longest = adopted.iter().max().unwrap();
    println!(
        "{} crashes, {} requests, {} failed; adoption and first answers: {adopted:?}",
        crashes.len(),
        asked.len(),
        failed.len()
    );
    assert!(*longest < ADOPTED_WITHIN, "{adopted:?}");
    node.stop();
}

#[test]
fn a_killed_launcher_interrupts_no_requests() {
    let mut node =
        Node::builder().hold_listeners().model("old", SERIAL).model("new", SERIAL).model("newer", SERIAL).start();
    let http = node.http();
    assert_eq!(http.post(&run("old"), &json!(0)).status, 200);
    let engine = node.engine("old").expect("a process");
    let launcher = node.launcher().expect("a launcher");
    assert!(descriptors(launcher).len() < 64, "{:?}", descriptors(launcher));

    node.replace_launcher(Signal::SIGKILL);
    assert_eq!(http.post(&run("old"), &json!(0)).status, 200);
    assert_eq!(http.post(&run("new"), &json!(0)).status, 200, "{}", node.log());
    assert_eq!(node.engine("old"), Some(engine));

    // Both at once, with a request in flight that the model itself goes on with.
    let launcher = node.launcher().expect("a launcher");
    kill(launcher, Signal::SIGKILL).unwrap();
    node.crash();
    node.start_again();
    assert_eq!(http.post(&run("old"), &json!(0)).status, 200);
    node.await_launcher(launcher);
    assert_eq!(node.engine("old"), Some(engine));
    assert_eq!(http.post(&run("newer"), &json!(0)).status, 200, "{}", node.log());

    // Instances of three launchers end as if there had been one.
    for model in ["old", "new", "newer"] {
        let stopped = node.omnictl(["stop", model, "--wait"]);
        assert_eq!(stopped.code, 0, "{stopped:?}\n{}", node.log());
        assert_eq!(node.model(model).last_exit, None, "{model} ended well");
    }
    wait_for("the last trace", PATIENCE, || node.traces().is_empty().then_some(()));
    node.stop();
}

#[test]
fn a_start_is_repeated_after_the_launcher_was_killed() {
    let soon = ("omni.toml", "schema = 1\n[scaling]\nidle-timeout = \"200ms\"\n");
    let node = Node::builder().model("cold", &[SERIAL[0], soon]).start();
    let http = node.http();
    // The keeper waits longer each time, up to five seconds.
    for _ in 0..rounds(20).max(3) {
        let idle = || node.model("cold").state == State::Stopped && node.traces().is_empty();
        wait_for("the model to be stopped", PATIENCE, || idle().then_some(()));
        thread::scope(|scope| {
            let first = scope.spawn(move || http.post(&run("cold"), &json!(0)).status);
            wait_for("a start", PATIENCE, || (node.model("cold").state != State::Stopped).then_some(()));
            node.replace_launcher(Signal::SIGKILL);
            let status = first.join().unwrap();
            assert!([200, 503].contains(&status), "{status}\n{}", node.log());
        });
        wait_for("an answer", PATIENCE, || (http.post(&run("cold"), &json!(0)).status == 200).then_some(()));
    }
    node.stop();
}

#[test]
fn a_launcher_whose_program_is_missing_for_a_moment_is_started_later() {
    let programs = Programs::new();
    let node = Node::builder().model("one", SERIAL).programs(&programs).start();
    let (program, away) = (programs.folder().join("omni-launcher"), programs.folder().join("away"));
    fs::rename(&program, &away).unwrap();
    let launcher = node.launcher().unwrap();
    kill(launcher, Signal::SIGKILL).unwrap();
    wait_for("a start that fails", PATIENCE, || node.log().contains("the launcher cannot be started").then_some(()));
    fs::rename(&away, &program).unwrap();
    node.await_launcher(launcher);
    assert_eq!(node.http().post(&run("one"), &json!(0)).status, 200, "{}", node.log());
    node.stop();
}

#[test]
fn sigusr2_leaves_the_models_and_sigterm_lets_requests_finish() {
    let mut node = Node::builder().hold_listeners().model("one", SERIAL).start();
    let http = node.http();
    assert_eq!(http.post(&run("one"), &json!(0)).status, 200);
    let engine = node.engine("one").expect("a process");
    for signal in [Signal::SIGUSR2, Signal::SIGUSR2] {
        kill(node.pid(), signal).unwrap();
        assert!(node.wait_for_end().success(), "{}", node.log());
        assert!(is_alive(engine));
        node.start_again();
        assert_eq!(http.post(&run("one"), &json!(0)).status, 200);
        assert_eq!(node.engine("one"), Some(engine));
    }
    thread::scope(|scope| {
        let last = scope.spawn(move || http.post(&run("one"), &json!(1.0)));
        wait_for("the request to be in work", PATIENCE, || (node.model("one").in_flight == 1).then_some(()));
        node.stop();
        let last = last.join().unwrap();
        assert_eq!(last.status, 200, "{}", last.text());
    });
    assert!(!is_alive(engine));
}

#[test]
fn a_draining_scheduler_answers_the_first_request_of_an_accepted_connection() {
    let mut node = Node::builder().hold_listeners().model("one", SERIAL).start();
    let http = node.http();
    for (signal, says) in [(Signal::SIGUSR2, "leaving the models"), (Signal::SIGTERM, "draining")] {
        let mut fresh = http.connect();
        // Connections are accepted in turn: the fresh one was, when a later one is answered.
        assert_eq!(http.post(&run("one"), &json!(0)).status, 200);
        kill(node.pid(), signal).unwrap();
        wait_for(says, PATIENCE, || node.log().contains(says).then_some(()));
        let body = "POST /ai/run/one HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\n0";
        fresh.write_all(body.as_bytes()).unwrap();
        let answer = Stream::read(BufReader::new(fresh));
        assert!([200, 503].contains(&answer.status), "{}", answer.status); // requests to models that stop are refused
        assert!(node.wait_for_end().success(), "{}", node.log());
        if signal == Signal::SIGUSR2 {
            node.start_again();
        }
    }
}

#[test]
fn a_killed_worker_ends_its_instance_and_nothing_else() {
    let node = Node::builder().model("one", SERIAL).model("neighbour", SERIAL).start();
    let http = node.http();
    for model in ["one", "neighbour"] {
        assert_eq!(http.post(&run(model), &json!(0)).status, 200);
    }
    let neighbour = node.engine("neighbour");
    for round in 1..=rounds(20).max(3) as u64 {
        let instance = node.instance("one").expect("an instance");
        let engine = Pid::from_raw(instance.pid.expect("a process"));
        let worker = node.worker(engine).expect("its worker");
        thread::scope(|scope| {
            let asked = scope.spawn(move || http.post(&run("one"), &json!(30)));
            wait_for("the request to be in work", PATIENCE, || (node.model("one").in_flight == 1).then_some(()));
            kill(worker, Signal::SIGKILL).unwrap();
            let answer = asked.join().unwrap();
            assert_eq!((answer.status, answer.error_code()), (502, Some(3050)), "{}", answer.text());
        });
        wait_for("the next instance", PATIENCE, || {
            let model = node.model("one");
            (model.state == State::Ready && model.restarts == round).then_some(())
        });
        assert_eq!(node.model("one").last_exit.as_deref(), Some("lost together with its worker"));
        wait_for("the old processes to be gone", PATIENCE, || {
            // No zombie, no process in state D: the meminfo file was aborted.
            let left = node.found().into_iter().find(|line| line.contains(&instance.id));
            (left.is_none() && !is_alive(engine) && !is_alive(worker)).then_some(())
        });
        assert_eq!(http.post(&run("one"), &json!(0)).status, 200);
        // A start by hand resets the tally: the next death is the first in a row again.
        assert_eq!(node.omnictl(["start", "one", "--wait"]).code, 0);
    }
    assert!(
        node.admin().get("/metrics").text().contains("omni_instance_restarts_total{model=\"one\",reason=\"worker\"}")
    );
    assert_eq!(node.engine("neighbour"), neighbour);
    node.stop();
}

#[test]
fn a_second_scheduler_refuses_to_start() {
    let node = Node::builder().model("one", SERIAL).start();
    assert_eq!(node.http().post(&run("one"), &json!(0)).status, 200);
    let engine = node.engine("one");
    let rival = node.rival();
    assert!(rival.code != 0 && rival.stderr.contains("another omni-scheduler serves"), "{rival:?}");
    assert_eq!(node.http().post(&run("one"), &json!(0)).status, 200);
    assert_eq!(node.engine("one"), engine);
    node.stop();
}

#[test]
fn an_instance_started_for_a_dead_scheduler_is_removed() {
    let mut node = Node::builder().hold_listeners().model("one", SERIAL).start();
    assert_eq!(node.http().post(&run("one"), &json!(null)).status, 200);
    let (id, engine) = (node.instance("one").unwrap().id, node.engine("one").unwrap());
    let socket = node.worker_socket(&id);
    node.crash();
    // As if it had been started only after the next scheduler looked.
    fs::rename(&socket, socket.with_extension("later")).unwrap();
    node.start_again();
    wait_for("the stranger to be ended", PATIENCE, || (!is_alive(engine)).then_some(()));
    assert_eq!(node.http().post(&run("one"), &json!(null)).json()["result"], "one");
    assert_ne!(node.engine("one").unwrap(), engine);
    let model = node.model("one");
    assert_eq!((model.restarts, model.last_exit), (0, None), "{}", node.log());
    node.stop();
}
