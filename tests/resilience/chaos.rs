//! Death of any process of a node at any moment: all models that are wanted are ready again by themselves, and nothing
//! of their predecessors is left.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use omni_control_api::State;
use omni_tests::process::descriptors;
use omni_tests::{Node, PATIENCE, chance, is_soak, under_load, wait_for};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

const CODE: (&str, &str) = (
    "model.py",
    "import time\ndef handle_request(request, context):\n    time.sleep(0.01)\n    return context.model\n",
);
const ASYNC: (&str, &str) = (
    "model.py",
    "import asyncio\nasync def handle_request(request, context):\n    await asyncio.sleep(0.01)\n    return context.model\n",
);
/// Models that are wanted all the time, with the number of their instances.
const MODELS: [(&str, usize); 3] = [("serial", 1), ("several", 2), ("forked", 2)];
/// Rounds of a soak; otherwise as many as begin within a time.
const ROUNDS: usize = 1000;
const LONG: Duration = Duration::from_secs(40);
/// Kills of one round, and the most milliseconds between two of them.
const KILLS: usize = 4;
const BETWEEN: u64 = 400;

/// Resources of a node at rest: processes, control groups, mounts, loop devices, files of instances, descriptors of
/// scheduler and launcher. No round may add to them: nothing is left behind, nothing grows. There may be fewer: a
/// zygote that died is not started again for a while.
fn shape(node: &Node) -> Vec<String> {
    let named = |who: &'static str, pid: Pid| descriptors(pid).into_iter().map(move |open| format!("{who} has {open}"));
    // The launcher looks at a group that is there from its next look on; that it lets go of one that is not is what counts.
    let is_watched = |open: &String| {
        let (_, path) = open.split_once(" has ").unwrap();
        path.contains("/model/") && Path::new(path).exists()
    };
    let of_launcher = node.launcher().into_iter().flat_map(|launcher| named("launcher", launcher));
    let of_launcher = of_launcher.filter(|open| !is_watched(open));
    let open = named("scheduler", node.pid()).chain(of_launcher);
    // An instance without a zygote has a process 1 of its own, with the worker's name. All leftovers are in a control
    // group, and these are counted.
    let found = node.found().into_iter().filter(|line| !line.ends_with(": omni-worker "));
    without_numbers(found.chain(node.traces()).chain(open))
}

/// Without process ids, and the ids of instances, which are hexadecimal.
fn without_numbers(lines: impl Iterator<Item = String>) -> Vec<String> {
    let is_number =
        |word: &str| word.chars().any(|c| c.is_ascii_digit()) && word.chars().all(|c| c.is_ascii_hexdigit());
    let plain = |line: String| {
        let words = line.split_inclusive(|c: char| !c.is_ascii_alphanumeric());
        let plain = |word: &str| match word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()) {
            number if is_number(number) => word.replace(number, "N"),
            _ => word.to_owned(),
        };
        words.map(plain).collect()
    };
    let mut all: Vec<String> = lines.map(plain).collect();
    all.sort();
    all
}

/// Items of `these` that are not in `those`, as often as they occur.
fn beyond(these: &[String], those: &[String]) -> Vec<String> {
    let mut rest = those.to_vec();
    let is_more = |line: &&String| match rest.iter().position(|other| other == *line) {
        Some(at) => {
            rest.swap_remove(at);
            false
        }
        None => true,
    };
    these.iter().filter(is_more).cloned().collect()
}

fn all_ready(node: &Node) -> bool {
    MODELS.iter().all(|(name, count)| {
        let model = node.model(name);
        let ready = model.instances.iter().filter(|instance| instance.state == State::Ready).count();
        ready == *count && model.instances.len() == *count
    })
}

/// Kills a process at random. The scheduler is started again at once, as a service manager would; the launcher has its
/// keeper, which stands for one as well and is spared.
fn kill_somebody(node: &mut Node, chance: &mut fastrand::Rng) -> String {
    if chance.u8(..4) == 0 {
        node.crash();
        if chance.bool() {
            // The successor dies as well, at some point of its start.
            node.begin_again();
            thread::sleep(Duration::from_millis(chance.u64(..100)));
            node.crash();
        }
        node.begin_again();
        return "scheduler".to_owned();
    }
    let line = |pid: Pid| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let others = node.processes().into_iter().filter(|pid| *pid != node.pid() && !line(*pid).contains("omni-launcher"));
    let others: Vec<Pid> = others.collect();
    let victim = match node.launcher() {
        Some(launcher) if chance.u8(..3) == 0 => Some(launcher),
        _ => chance.choice(&others).copied(),
    };
    let Some(victim) = victim else { return "nobody".to_owned() };
    let told = format!("{victim}: {}", line(victim).replace('\0', " "));
    let _ = kill(victim, Signal::SIGKILL); // it may have ended meanwhile
    told
}

#[test]
fn the_node_recovers_from_the_death_of_any_process() {
    let scaling = |count: usize| format!("[scaling]\nmin-instances = {count}\nmax-instances = {count}\n");
    let manifest = |count, more: &str| format!("schema = 1\n{}{more}", scaling(count));
    let several = manifest(2, "concurrency = 8\n");
    let mut node = Node::builder()
        .hold_listeners()
        .model("serial", &[CODE, ("omni.toml", &manifest(1, ""))])
        .model("several", &[ASYNC, ("omni.toml", &several)])
        .model("forked", &[CODE, ("omni.toml", &manifest(2, "[python]\nzygote = true\n"))])
        .start();
    let http = node.http();
    wait_for("all models", PATIENCE, || all_ready(&node).then_some(()));
    let mut chance = chance();
    let ask = |client: usize| {
        let (model, _) = MODELS[client % MODELS.len()];
        let head = "host: localhost\r\nconnection: close\r\ncontent-length: 4\r\n\r\nnull";
        // The answer depends on which process was killed.
        drop(http.raw(format!("POST /ai/run/{model} HTTP/1.1\r\n{head}").as_bytes(), false));
        thread::sleep(Duration::from_millis(20));
    };
    let answers = |(model, _): &(&str, usize)| {
        let answer = http.run(model, &json!(null));
        answer.status == 200 && answer.json()["result"] == *model
    };
    let is_whole = |node: &Node| all_ready(node) && MODELS.iter().all(answers);
    assert!(is_whole(&node), "{}", node.log());
    let before = shape(&node);
    let (begun, mut longest) = (Instant::now(), Duration::ZERO);
    let mut rounds = 0;
    while rounds < ROUNDS && (is_soak() || begun.elapsed() < LONG) {
        rounds += 1;
        let mut killed = Vec::new();
        under_load(MODELS.len(), ask, |_| {
            for _ in 0..KILLS {
                thread::sleep(Duration::from_millis(chance.u64(..BETWEEN)));
                killed.push(kill_somebody(&mut node, &mut chance));
            }
        });
        let settling = Instant::now();
        node.await_ready();
        let what = format!("all models to be ready in round {rounds}, after {killed:?}");
        // The last death may be noticed only after a check that finds all models ready.
        wait_for(&what, PATIENCE, || is_whole(&node).then_some(()));
        longest = longest.max(settling.elapsed());
        // A start by hand resets the tally: the next death is the first in a row again, else the pauses would grow to a
        // minute. And the sandbox of a killed zygote stays while one of its instances lives: none does now.
        for (model, _) in MODELS {
            // Refused while a launcher that was killed last is not back yet.
            let restart = || (node.omnictl(["restart", model, "--wait"]).code == 0).then_some(());
            wait_for(&format!("{what}, a restart of {model}"), PATIENCE, restart);
        }
        let end = Instant::now() + PATIENCE;
        loop {
            let more = beyond(&shape(&node), &before);
            if more.is_empty() && all_ready(&node) {
                break;
            }
            assert!(Instant::now() < end, "left after {killed:?}: {more:#?}\n{}", node.log());
        }
    }
    println!("{rounds} rounds of {KILLS} kills; whole again after {longest:?} at most");
    node.stop();
}
