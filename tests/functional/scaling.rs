//! Several instances of one model: as many as the load needs, each separate from the others.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use omni_control_api::{Instance, State};
use omni_tests::{Answer, Client, Node, PATIENCE, under_load, wait_for};
use serde_json::json;
use std::collections::BTreeSet;
use std::thread;

/// Says which instance it is, after so many seconds.
const CODE: (&str, &str) = (
    "model.py",
    "import time\ndef handle_request(request, context):\n    time.sleep(request.body.json or 0)\n    return context.instance\n",
);

fn manifest(scaling: &str) -> String {
    format!("schema = 1\n[scaling]\n{scaling}\n")
}

fn ready(node: &Node) -> Vec<Instance> {
    node.model("app").instances.into_iter().filter(|instance| instance.state == State::Ready).collect()
}

fn ask(http: Client, seconds: f64) -> Answer {
    http.run("app", &json!(seconds))
}

fn whose(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["result"].as_str().expect("an instance").to_owned()
}

#[test]
fn instances_come_with_the_load_and_go_when_it_is_over() {
    let manifest = manifest("max-instances = 3\nidle-timeout = \"1s\"");
    let node = Node::builder().model("app", &[CODE, ("omni.toml", &manifest)]).start();
    let http = node.http();
    whose(&ask(http, 0.0));
    assert_eq!(ready(&node).len(), 1, "one request wants one instance");
    let answers = under_load(
        6,
        |_| ask(http, 0.2),
        |_| {
            wait_for("three instances", PATIENCE, || (ready(&node).len() == 3).then_some(()));
            let busy = || ready(&node).iter().all(|instance| instance.in_flight == 1);
            wait_for("all of them to have a request", PATIENCE, || busy().then_some(()));
            let explained = wait_for("the average to be beyond them", PATIENCE, || {
                let explained = node.omnictl(["explain", "app"]);
                assert_eq!(explained.code, 0, "{explained:?}");
                Some(explained.stdout).filter(|text| text.contains("the load needs more than `max-instances`"))
            });
            for words in ["3 ready, 0 starting or ending; 3 wanted", "0 to 3 instances, 1 requests at once on each"] {
                assert!(explained.contains(words), "{words} in {explained}");
            }
            assert!(!explained.contains("message"), "there are as many as may be: {explained}");
        },
    );
    let found: BTreeSet<String> = answers.iter().flatten().map(whose).collect();
    assert_eq!(found.len(), 3, "all three answered, and no request failed");
    assert!(node.model("app").instances.len() <= 3);
    // The last of them rests, too: there is no `min-instances`.
    wait_for("them to go", PATIENCE, || node.model("app").instances.is_empty().then_some(()));
    assert_eq!(node.model("app").restarts, 0);
    whose(&ask(http, 0.0));
    node.stop();
}

#[test]
fn an_instance_that_dies_leaves_the_requests_of_the_others_alone() {
    let manifest = manifest("min-instances = 3\nmax-instances = 3");
    let node = Node::builder().model("app", &[CODE, ("omni.toml", &manifest)]).start();
    let http = node.http();
    wait_for("three instances", PATIENCE, || (ready(&node).len() == 3).then_some(()));
    let (failed, answered): (Vec<_>, Vec<_>) = thread::scope(|scope| {
        let asked: Vec<_> = (0..3).map(|_| scope.spawn(|| ask(http, 3.0))).collect();
        let busy = || ready(&node).iter().filter(|instance| instance.in_flight == 1).count() == 3;
        wait_for("a request at each", PATIENCE, || busy().then_some(()));
        // Requests wait for the first free instance.
        let waiting: Vec<_> = (0..3).map(|_| scope.spawn(|| ask(http, 0.0))).collect();
        wait_for("requests that wait", PATIENCE, || (node.model("app").queued == 3).then_some(()));
        let victim = ready(&node)[1].pid.expect("a process");
        kill(Pid::from_raw(victim), Signal::SIGKILL).unwrap();
        let answers: Vec<Answer> = asked.into_iter().chain(waiting).map(|asked| asked.join().unwrap()).collect();
        answers.into_iter().partition(|answer| answer.status != 200)
    });
    assert_eq!((failed.len(), answered.len()), (1, 5), "{}", node.log());
    assert_eq!((failed[0].status, failed[0].error_code()), (502, Some(3050)));
    wait_for("three instances again", PATIENCE, || (ready(&node).len() == 3).then_some(()));
    assert_eq!(node.model("app").restarts, 1);
    node.stop();
}

#[test]
fn all_instances_survive_their_scheduler() {
    let manifest = manifest("min-instances = 3\nmax-instances = 3");
    let mut node = Node::builder().hold_listeners().model("app", &[CODE, ("omni.toml", &manifest)]).start();
    let ids =
        |node: &Node| ready(node).into_iter().map(|instance| (instance.id, instance.pid)).collect::<BTreeSet<_>>();
    wait_for("three instances", PATIENCE, || (ready(&node).len() == 3).then_some(()));
    let before = ids(&node);
    node.crash();
    node.start_again();
    let http = node.http();
    let answered: BTreeSet<String> = thread::scope(|scope| {
        let asked: Vec<_> = (0..3).map(|_| scope.spawn(|| whose(&ask(http, 1.0)))).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    assert_eq!(answered, before.iter().map(|(id, _)| id.clone()).collect());
    assert_eq!(ids(&node), before, "{}", node.log());
    assert_eq!(node.model("app").restarts, 0);
    node.stop();
}

#[test]
fn a_session_keeps_its_instance_while_that_has_room() {
    let manifest = manifest("min-instances = 3\nmax-instances = 3\nconcurrency = 4");
    let code = "import asyncio\nasync def handle_request(request, context):\n    await asyncio.sleep(request.body.json or 0)\n    return context.instance\n";
    let node = Node::builder().model("app", &[("model.py", code), ("omni.toml", &manifest)]).start();
    wait_for("three instances", PATIENCE, || (ready(&node).len() == 3).then_some(()));
    let http = node.http();
    let ask = |session: &str, body: &str| {
        let headers = [("content-type", "application/json"), ("x-session-affinity", session)];
        http.request("POST", "/ai/run/app", &headers, body.as_bytes())
    };
    let mut homes = BTreeSet::new();
    for session in 0..12 {
        let session = format!("session-{session}");
        let home = whose(&ask(&session, "0"));
        for _ in 0..5 {
            assert_eq!(whose(&ask(&session, "0")), home, "{session}");
        }
        homes.insert(home);
    }
    assert!(homes.len() > 1, "sessions spread over the instances");
    // A preference only: a request does not wait for its home while another has room.
    let found: BTreeSet<String> = thread::scope(|scope| {
        let asked: Vec<_> = (0..12).map(|_| scope.spawn(|| whose(&ask("session-0", "1.5")))).collect();
        wait_for("all to be in work", PATIENCE, || (node.model("app").in_flight == 12).then_some(()));
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    assert_eq!(found.len(), 3);
    node.stop();
}
