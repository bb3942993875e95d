//! A change of a model's directory: the new generation is proven beside the old one and takes over without a failed
//! request; one that does not become ready never takes traffic; a crash in the middle loses neither.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_control_api::{Generation, Model, Role, State};
use omni_tests::process::is_alive;
use omni_tests::{Answer, Client, Node, PATIENCE, rounds, under_load, wait_for};
use serde_json::json;
use std::thread;

/// Answers its word after a moment, and is ready after this many seconds.
fn model(word: &str, setup: f64) -> String {
    format!(
        "import time\ndef setup(context):\n    time.sleep({setup})\n\n\
         def handle_request(request, context):\n    time.sleep(0.005)\n    return '{word}'\n"
    )
}

fn publish(node: &Node, code: &str) {
    node.publish("app", &[("model.py", code)]);
}

fn ask(http: Client) -> Answer {
    http.run("app", &json!(null))
}

/// Instances that have a socket.
fn workers(node: &Node) -> usize {
    node.traces().iter().filter(|name| name.ends_with(".sock")).count()
}

fn candidate(node: &Node, is_it: impl Fn(&Generation) -> bool) -> Generation {
    wait_for("the candidate", PATIENCE, || node.model("app").candidate().filter(|found| is_it(found)).cloned())
}

fn serving(model: &Model) -> &Generation {
    model.generations.iter().find(|generation| generation.role == Role::Serving).expect("a generation that serves")
}

#[test]
fn a_new_generation_takes_over_without_a_failed_request() {
    let node = Node::builder().model("app", &[("model.py", &model("0", 0.0))]).start();
    node.says("app", "0");
    let (http, count) = (node.http(), rounds(40).max(3));
    let mut versions = vec![node.model("app").version.expect("a version")];
    let answers = under_load(
        4,
        |_| ask(http),
        |load| {
            for round in 1..=count {
                publish(&node, &model(&round.to_string(), 0.2));
                let before = versions.last().unwrap().clone();
                let now = wait_for("the next version", PATIENCE, || {
                    node.model("app").version.filter(|version| *version != before)
                });
                versions.push(now);
                load();
            }
        },
    );
    let mut all = 0;
    for client in &answers {
        let mut newest = 0;
        for answer in client {
            assert_eq!(answer.status, 200, "{}\n{}", answer.text(), node.log());
            let word: usize = answer.json()["result"].as_str().unwrap().parse().unwrap();
            assert!(word >= newest, "{word} after {newest}: traffic moved back");
            assert_eq!(answer.header("x-omni-model-version"), versions[word].get(..12), "the version that answered");
            newest = word;
            all += 1;
        }
        assert_eq!(newest, count);
    }
    println!("{all} requests over {count} changes");
    let model = node.model("app");
    assert_eq!((model.state, model.restarts, &model.last_exit), (State::Ready, 0, &None), "a change is no death");
    wait_for("the others to end", PATIENCE, || (workers(&node) == 1).then_some(()));
    node.stop();
}

#[test]
fn a_request_in_flight_ends_on_the_generation_it_began_on() {
    let slow = "import time\ndef handle_request(request, context):\n    time.sleep(request.body.json or 0)\n    return 'old'\n";
    let node = Node::builder().model("app", &[("model.py", slow)]).start();
    node.says("app", "old");
    let old = node.engine("app").expect("a process");
    let http = node.http();
    thread::scope(|scope| {
        let long = scope.spawn(move || http.run("app", &json!(5.0)));
        wait_for("it to be in work", PATIENCE, || (node.model("app").in_flight == 1).then_some(()));
        publish(&node, &model("new", 0.0));
        node.says("app", "new");
        assert!(is_alive(old), "it has a request still");
        let answer = long.join().unwrap();
        assert_eq!((answer.status, answer.json()["result"].as_str()), (200, Some("old")), "{}", node.log());
    });
    wait_for("its end", PATIENCE, || (!is_alive(old)).then_some(()));
    node.stop();
}

#[test]
fn a_generation_that_is_not_ready_never_takes_traffic_and_says_why() {
    let node = Node::builder().model("app", &[("model.py", &model("good", 0.0))]).start();
    node.says("app", "good");
    let (http, engine, version) = (node.http(), node.engine("app"), node.model("app").version);
    let bad = [
        ("import nothing_like_this\n".to_owned() + &model("bad", 0.0), "nothing_like_this", true),
        ("def handle(request, context):\n    return 'bad'\n".to_owned(), "handle_request", true),
        (
            "def setup(context):\n    raise KeyError('weights are not there')\n".to_owned()
                + "def handle_request(request, context):\n    return 'bad'\n",
            "weights are not there",
            false,
        ),
    ];
    let answers = under_load(
        4,
        |_| ask(http),
        |load| {
            for (code, why, for_good) in &bad {
                publish(&node, code);
                let told = |found: &Generation| found.message.as_ref().is_some_and(|message| message.contains(why));
                let failed = candidate(&node, |found| told(found) && found.state == State::Failed);
                assert_eq!(failed.retry_in_seconds.is_none(), *for_good, "{failed:?}");
                let model = node.model("app");
                assert_eq!((model.state, &model.version, &model.message), (State::Ready, &version, &None));
                let status = node.omnictl(["status", "app"]);
                assert!(status.stdout.contains(why), "{status:?}");
                // Tried again, it fails again, and the command returns at once and not at the end of the time limit.
                let restart = node.omnictl(["restart", "app", "--wait"]);
                assert!(restart.code == 3 && restart.stderr.contains(why), "{restart:?}");
                load();
            }
            // A manifest that cannot be read: there is no candidate, and the directory says why.
            node.publish("app", &[("model.py", &model("bad", 0.0)), ("omni.toml", "[scaling]\nconcurency = 2\n")]);
            wait_for("the refusal", PATIENCE, || {
                let model = node.model("app");
                let told = model.directory.refused.is_some_and(|message| message.contains("concurency"));
                (told && model.generations.iter().all(|found| found.role != Role::Candidate)).then_some(())
            });
            assert!(node.omnictl(["status", "app"]).stdout.contains("concurency"));
            load();
        },
    );
    for answer in answers.iter().flatten() {
        assert_eq!((answer.status, answer.json()["result"].as_str()), (200, Some("good")), "{}", answer.text());
    }
    assert_eq!((node.engine("app"), node.model("app").version), (engine, version), "untouched");
    publish(&node, &model("better", 0.0));
    node.says("app", "better");
    assert_eq!(node.model("app").directory.refused, None);
    node.stop();
}

#[test]
fn content_that_comes_back_ends_the_attempt_and_newer_content_replaces_it() {
    let first = model("first", 0.0);
    let node = Node::builder().model("app", &[("model.py", &first)]).start();
    node.says("app", "first");
    let engine = node.engine("app");
    publish(&node, &model("never", 60.0));
    let never = candidate(&node, |found| found.state == State::Starting);
    publish(&node, &first);
    wait_for("the attempt to end", PATIENCE, || (node.model("app").instances.len() == 1).then_some(()));
    assert_eq!((node.engine("app"), node.model("app").candidate()), (engine, None));
    publish(&node, &model("never again", 60.0));
    let again = candidate(&node, |found| found.state == State::Starting);
    publish(&node, &model("last", 0.0));
    node.says("app", "last");
    let model = node.model("app");
    assert!(![&never.version, &again.version].contains(&&serving(&model).version));
    wait_for("the others to end", PATIENCE, || (workers(&node) == 1).then_some(()));
    assert_eq!(node.model("app").restarts, 0, "who is given up has not died");
    node.stop();
}

/// The scheduler is killed while a new generation starts, and again while both serve or drain.
#[test]
fn a_scheduler_that_is_killed_during_a_change_goes_on_with_it() {
    let mut node = Node::builder().hold_listeners().model("app", &[("model.py", &model("old", 0.0))]).start();
    node.says("app", "old");
    let old = node.engine("app").expect("a process");
    publish(&node, &model("new", 8.0)); // longer than two schedulers need to begin
    candidate(&node, |found| found.state == State::Starting);
    let version = node.model("app").directory.version;
    let instance =
        |node: &Node| node.model("app").instances.into_iter().find(|found| Some(&found.version) == version.as_ref());
    let starting = wait_for("its process", PATIENCE, || instance(&node).filter(|found| found.pid.is_some()));
    for _ in 0..2 {
        node.crash();
        assert!(is_alive(old));
        node.start_again();
        let answer = ask(node.http());
        assert_eq!(answer.status, 200, "{}\n{}", answer.text(), node.log());
    }
    node.says("app", "new");
    let now = instance(&node).expect("the same instance");
    assert_eq!((&now.id, now.pid), (&starting.id, starting.pid), "it was not started again\n{}", node.log());
    wait_for("the old one to end", PATIENCE, || (!is_alive(old)).then_some(()));
    node.crash();
    node.start_again();
    assert_eq!(ask(node.http()).json()["result"], "new");
    let model = node.model("app");
    assert_eq!((model.instances.len(), model.restarts), (1, 0), "{}", node.log());
    node.stop();
}

/// The first instance is ready at once, the others only when the test lets them.
#[test]
fn a_candidate_that_is_ready_in_part_takes_no_traffic_from_the_next_scheduler() {
    let manifest = ("omni.toml", "[scaling]\nmin-instances = 2\nmax-instances = 2\n");
    let halting = "import os, time\ndef setup(context):\n    try:\n        os.mkdir(context.cache_dir / 'first')\n    \
                   except FileExistsError:\n        while not os.path.exists(context.cache_dir / 'go'):\n            \
                   time.sleep(0.05)\n\ndef handle_request(request, context):\n    return 'new'\n";
    let old = "def handle_request(request, context):\n    if request.body.json:\n        (context.cache_dir / 'go').touch()\n    \
               return 'old'\n";
    let mut node = Node::builder().hold_listeners().model("app", &[("model.py", old), manifest]).start();
    node.says("app", "old");
    let ready = |version: &str| {
        let model = node.model("app");
        model.instances.iter().filter(|found| found.version == version && found.state == State::Ready).count()
    };
    let version = node.model("app").version.expect("a version");
    wait_for("both to be ready", PATIENCE, || (ready(&version) == 2).then_some(()));
    node.publish("app", &[("model.py", halting), manifest]);
    let next = candidate(&node, |found| found.state == State::Starting).version;
    wait_for("one of two", PATIENCE, || (ready(&next) == 1 && node.model("app").instances.len() == 4).then_some(()));
    for round in 0..4 {
        if round == 3 {
            node.upgrade();
        } else {
            node.crash();
            node.start_again();
        }
        for _ in 0..8 {
            assert_eq!(ask(node.http()).json()["result"], "old", "{}", node.log());
        }
        let model = node.model("app");
        assert_eq!((&serving(&model).version, model.instances.len()), (&version, 4), "{}", node.log());
    }
    assert_eq!(node.http().run("app", &json!(true)).json()["result"], "old");
    node.says("app", "new");
    assert_eq!(node.model("app").restarts, 0);
    node.stop();
}

/// A scheduler that finds nothing running remembers the last serving version, and serves it beside content that is not
/// ready.
#[test]
fn the_last_serving_version_serves_after_a_stop_until_new_content_is_proven() {
    let mut node = Node::builder()
        .hold_listeners()
        .model("app", &[("model.py", &model("good", 0.0)), ("omni.toml", "[scaling]\nidle-timeout = \"300ms\"\n")])
        .start();
    node.says("app", "good");
    let version = node.model("app").version;
    wait_for("it to rest", PATIENCE, || node.traces().is_empty().then_some(()));
    node.crash();
    publish(&node, "import nothing_like_this\n");
    node.start_again();
    node.says("app", "good");
    assert_eq!(node.model("app").version, version);
    candidate(&node, |found| found.message.as_ref().is_some_and(|message| message.contains("nothing_like_this")));
    node.says("app", "good");
    node.stop();
}

/// A rollback that never became ready is not what the next scheduler begins with.
#[test]
fn a_rollback_that_failed_serves_no_more_after_a_restart_than_before() {
    // The first version does not start any more once the second one has served.
    let first = "import os\ndef setup(context):\n    assert not os.path.exists(context.cache_dir / 'mark')\n\ndef handle_request(request, context):\n    return 'first'\n";
    let second =
        "def handle_request(request, context):\n    (context.cache_dir / 'mark').touch()\n    return 'second'\n";
    let manifest = ("omni.toml", "[scaling]\nidle-timeout = \"300ms\"\n");
    let mut node = Node::builder().hold_listeners().model("app", &[("model.py", first), manifest]).start();
    node.says("app", "first");
    node.publish("app", &[("model.py", second), manifest]);
    node.says("app", "second");
    assert_eq!(node.omnictl(["rollback", "app"]).code, 0);
    candidate(&node, |found| found.state == State::Failed);
    node.says("app", "second");
    wait_for("it to rest", PATIENCE, || node.traces().is_empty().then_some(()));
    node.crash();
    node.start_again();
    let answer = ask(node.http());
    assert_eq!((answer.status, &answer.json()["result"]), (200, &json!("second")), "{}", node.log());
    node.stop();
}
