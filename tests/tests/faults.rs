//! Every kernel call of a worker's start fails once, and is once the moment when the worker is killed: a start that
//! fails leaves nothing, says why, and the next one works.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::errno::Errno;
use omni_tests::fault::{Call, Fault, Plan, Programs};
use omni_tests::{Belongings, Node, NodeBuilder, PATIENCE, chance, is_soak, wait_for};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const CODE: (&str, &str) = ("model.py", "def handle_request(request, context):\n    return 'well'\n");
/// How long each of the kinds of starts is tried when this is not a soak. It always begins with other calls.
const LONG: Duration = Duration::from_secs(18);

/// What may come of a fault beside a step that failed. Lost is a worker that was killed, or that ended itself because
/// its standard library could not go on.
const UNTOLD: [&str; 3] = ["not reached", "did not matter", "lost together with its worker"];

/// A node whose starts can be made to fail, and the calls that a start of its model makes.
struct Faulty {
    node: Node,
    programs: Programs,
    before: Belongings,
    calls: Vec<Call>,
}

impl Faulty {
    fn new(builder: NodeBuilder) -> Self {
        let programs = Programs::new();
        // A user id that a failed start kept would be missed soon: the last one is for builds.
        let node = builder.programs(&programs).config("uid-count = 4\n").start();
        start(&node);
        stop(&node);
        let before = Belongings::at_rest(&node);
        let mut faulty = Self { node, programs, before, calls: Vec::new() };
        let plan = Plan { at: None, fault: Fault::Kill };
        let (code, words) = faulty.hit(&plan);
        assert_eq!(code, 0, "{words}\n{}", faulty.node.log());
        faulty.calls = faulty.made();
        stop(&faulty.node);
        faulty.before.assert_unchanged(&faulty.node);
        faulty
    }

    /// One start under a plan: how `omnictl start` ended, and what it said.
    fn hit(&self, plan: &Plan) -> (i32, String) {
        self.programs.plan(plan);
        let said = self.node.omnictl(["start", "m", "--wait"]);
        assert!([0, 3].contains(&said.code), "{plan}: {said:?}\n{}", self.node.log());
        (said.code, said.stderr)
    }

    fn made(&self) -> Vec<Call> {
        wait_for("the tracer's word", PATIENCE, || self.programs.made())
    }

    /// What came of a start with a fault. In the end all is as before.
    fn try_at(&self, call: &Call, fault: Fault) -> String {
        let plan = Plan { at: Some(call.place.clone()), fault };
        let deaths = self.node.model("m").restarts;
        let (code, words) = self.hit(&plan);
        // Threads come to their calls in no order: there may be another number of calls than when they were counted.
        let reached = self.made().iter().any(|hit| hit.place == call.place);
        let model = self.node.model("m");
        let died = model.restarts > deaths;
        let told = match (code, died) {
            (0, false) if !reached => UNTOLD[0].to_owned(),
            (0, false) => UNTOLD[1].to_owned(),
            // It was started again at once.
            (0, true) => model.last_exit.unwrap_or_default(),
            _ => words,
        };
        let is_told = told.starts_with("could not be started: ") || UNTOLD.contains(&told.as_str());
        assert!(is_told, "{plan}: {told:?}\n{}", self.node.log());
        start(&self.node);
        self.node.says("m", "well");
        stop(&self.node);
        self.before.assert_unchanged(&self.node);
        told
    }
}

fn start(node: &Node) {
    let said = node.omnictl(["start", "m", "--wait"]);
    assert_eq!(said.code, 0, "{said:?}\n{}", node.log());
}

fn stop(node: &Node) {
    let said = node.omnictl(["stop", "m", "--wait"]);
    assert_eq!(said.code, 0, "{said:?}\n{}", node.log());
}

fn survives(builder: NodeBuilder, fault: Fault) {
    let faulty = Faulty::new(builder);
    let mut calls = faulty.calls.clone();
    assert!(calls.len() > 300, "{} calls", calls.len());
    chance().shuffle(&mut calls);
    let begun = Instant::now();
    let mut told: BTreeMap<String, usize> = BTreeMap::new();
    let mut tried = 0;
    for call in &calls {
        if !is_soak() && begun.elapsed() > LONG {
            break;
        }
        tried += 1;
        *told.entry(faulty.try_at(call, fault)).or_default() += 1;
    }
    println!("{tried} of {} calls with {fault:?}", calls.len());
    for (words, times) in &told {
        println!("{times:4} {}", words.trim_end());
    }
    faulty.node.stop();
}

fn plain() -> NodeBuilder {
    Node::builder().model("m", &[CODE])
}

#[test]
fn any_call_of_a_start_may_fail() {
    survives(plain(), Fault::Error(Errno::EIO));
}

#[test]
fn a_worker_may_be_killed_at_any_call_of_a_start() {
    survives(plain(), Fault::Kill);
}
