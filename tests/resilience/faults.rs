//! Every kernel call of a worker's start fails once, and is once the moment when the worker is killed: a start that
//! fails leaves nothing, says why, and the next one works. The same of zygotes, which no instance may fail with, of
//! instances that come from one, of models with a GPU, and of the builds of environments.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use omni_tests::fault::{Fault, Place, Plan, Programs, StartKind};
use omni_tests::gpu;
use omni_tests::index::{Behaviour, Index};
use omni_tests::{Node, NodeBuilder, PATIENCE, Resources, chance, is_soak, wait_for};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const CODE: (&str, &str) = ("model.py", "def handle_request(request, context):\n    return 'well'\n");
/// In place of the handler of the model with a GPU.
const GPU_HANDLER: &str =
    "\ndef handle_request(request, context):\n    enter()\n    return 'well' if weights.use() else 'lost'\n";
const GPU_MANIFEST: &str = "[resources]\ngpu-memory = \"32MiB\"\n[env]\nWEIGHTS_MIB = \"32\"\n";
const ZYGOTE_MANIFEST: &str = "[python]\nzygote = true\n";
/// An answer of the file system of `/proc` that the kernel does not take is lost, and its reader waits until this ends
/// it: `request_wait_answer`, in the engine. No kernel refuses such a write by itself while the file system is mounted.
const SHORT: &str = "[timeouts]\nstartup = \"8s\"\n";
/// How long each of the kinds of starts is tried when this is not a soak. It always begins with other calls.
const LONG: Duration = Duration::from_secs(8);

/// Most answers of the files of `/proc` that are tried, until two were lost.
const ANSWERS: usize = 8;

/// Outcomes of a fault beside a failed step. Lost is a worker that was killed, or that ended itself because its
/// standard library could not go on.
const UNTOLD: [&str; 3] = ["not reached", "did not matter", "lost together with its worker"];

/// Kinds of starts that are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The start of an instance by itself.
    Plain,
    /// The start of a zygote, beside the first instance's.
    Zygote,
    /// The start of an instance whose zygote is there.
    Forked,
    /// The start of an instance with memory on a (simulated) card.
    Gpu,
    /// The first step of the build of an environment.
    Build,
}

impl Kind {
    fn start_kind(self) -> StartKind {
        match self {
            Self::Zygote => StartKind::Zygote,
            Self::Plain | Self::Forked | Self::Gpu => StartKind::Instance,
            Self::Build => StartKind::Build,
        }
    }

    fn builder(self, index: &Index) -> NodeBuilder {
        // A user id that a failed start kept would be missed soon: the last one is for builds.
        let node = Node::builder().config("uid-count = 4\n");
        match self {
            Self::Plain => node.model("m", &[CODE, ("omni.toml", SHORT)]),
            Self::Zygote | Self::Forked => {
                node.model("m", &[CODE, ("omni.toml", &format!("{ZYGOTE_MANIFEST}{SHORT}"))])
            }
            Self::Gpu => {
                let code = format!("{}{GPU_HANDLER}", gpu::MODEL);
                let node = node.gpus(&[gpu::card(256)], "memory-budget = \"64MiB\"");
                node.model("m", &[("model.py", &code), ("omni.toml", &format!("{GPU_MANIFEST}{SHORT}"))])
            }
            Self::Build => {
                index.add("omni-one", "WORD = 'one'", &[]);
                let node = node.config(&format!("[python]\nindex-url = \"{}\"\n", index.url()));
                node.model("m", &[CODE, ("requirements.txt", "omni-one==1.0\n")])
            }
        }
    }
}

/// A node whose starts can be made to fail, and the calls that a start of its model makes.
struct Faulty {
    kind: Kind,
    node: Node,
    programs: Programs,
    before: Resources,
    calls: Vec<Place>,
    _index: Index,
}

impl Faulty {
    fn new(kind: Kind) -> Self {
        let (programs, index) = (Programs::new(), Index::start(Behaviour::Serves));
        let node = kind.builder(&index).programs(&programs).start();
        start(&node);
        stop(&node);
        end_zygotes(&node);
        let before = Resources::at_rest(&node);
        let mut faulty = Self { kind, node, programs, before, calls: Vec::new(), _index: index };
        let plan = Plan { at: None, fault: Fault::Kill };
        let (code, words) = faulty.hit(&plan);
        assert_eq!(code, 0, "{words}\n{}", faulty.node.log());
        faulty.calls = faulty.made();
        faulty.come_back();
        faulty
    }

    /// A start under a plan: how `omnictl start` ended, and its output.
    fn hit(&self, plan: &Plan) -> (i32, String) {
        // Without one that waits, the instance starts by itself, which is another start.
        if self.kind == Kind::Forked {
            wait_for("a zygote that waits", PATIENCE, || {
                start(&self.node);
                stop(&self.node);
                (self.node.zygotes() > 0).then_some(())
            });
        }
        if self.kind == Kind::Build {
            self.forget_environments();
        }
        self.programs.plan(self.kind.start_kind(), plan);
        // An instance starts though its zygote is not tried: that has a pause after a failure.
        let said = wait_for("a start with the plan", PATIENCE, || {
            let said = self.node.omnictl(["start", "m", "--wait"]);
            let is_taken = self.programs.is_taken(self.kind.start_kind());
            if !is_taken {
                stop(&self.node);
            }
            is_taken.then_some(said)
        });
        assert!([0, 3].contains(&said.code), "{plan}: {said:?}\n{}", self.node.log());
        (said.code, said.stderr)
    }

    fn made(&self) -> Vec<Place> {
        wait_for("the tracer's word", PATIENCE, || self.programs.made())
    }

    /// The outcome of a start with a fault. In the end all is as before.
    fn try_at(&self, at: &Place, fault: Fault) -> String {
        let plan = Plan { at: Some(at.clone()), fault };
        let deaths = self.node.model("m").restarts;
        let (code, words) = self.hit(&plan);
        // Threads come to their calls in no order: there may be another number of calls than when they were counted.
        let reached = self.made().contains(at);
        let model = self.node.model("m");
        let died = model.restarts > deaths;
        let told = match (code, died) {
            (0, false) if !reached => UNTOLD[0].to_owned(),
            (0, false) => UNTOLD[1].to_owned(),
            // Built again at once.
            (0, true) if self.kind == Kind::Build => self.built_badly(),
            // Started again at once.
            (0, true) => model.last_exit.unwrap_or_default(),
            _ => words,
        };
        let is_told = match self.kind {
            Kind::Plain | Kind::Forked | Kind::Gpu => {
                let is_late = told.ends_with("it was not ready within 8s, its `startup` in [timeouts]");
                told.starts_with("could not be started: ") || is_late || UNTOLD.contains(&told.as_str())
            }
            // The failure was reported, under any name, and was no time-out.
            Kind::Build => !told.trim().is_empty() && !told.contains("did not end") && !told.contains(UNTOLD[2]),
            Kind::Zygote => UNTOLD[..2].contains(&told.as_str()),
        };
        assert!(is_told, "{plan}: {told:?}\n{}", self.node.log());
        self.come_back();
        told
    }

    /// The next start works, and when all is stopped the node has what it had. A zygote that failed is made again after a
    /// pause, and one that ends well is the end of its failures.
    fn come_back(&self) {
        loop {
            start(&self.node);
            self.node.says("m", "well");
            stop(&self.node);
            if end_zygotes(&self.node) || ![Kind::Zygote, Kind::Forked].contains(&self.kind) {
                break;
            }
        }
        self.before.assert_unchanged(&self.node);
        if self.kind == Kind::Gpu {
            wait_for("no GPU memory to be used or promised", PATIENCE, || {
                let gpu = self.node.gpus().gpus.into_iter().next()?;
                let used = self.node.cards()[0].state().unwrap().used();
                (gpu.instances.is_empty() && gpu.committed_bytes == 0 && used == 0).then_some(())
            });
        }
        if self.kind == Kind::Build {
            let count = fs::read_dir(self.environments()).unwrap().count();
            assert_eq!(count, 2, "one environment and its record\n{}", self.node.log());
            let cache = fs::read_dir(self.environments().with_file_name("")).unwrap();
            let names = cache.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            assert!(!names.into_iter().any(|name| name.starts_with("build-")), "a folder to build in is left");
        }
    }

    fn environments(&self) -> PathBuf {
        self.node.folder().with_file_name("cache").join("environments")
    }

    /// Why the last build failed that did, as the log has it.
    fn built_badly(&self) -> String {
        let log = self.node.log();
        let line = log.lines().rfind(|line| line.contains("the environment cannot be built")).unwrap_or_default();
        let line: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
        line["reason"].as_str().unwrap_or_default().to_owned()
    }

    /// The next start builds its environment anew. No model runs.
    fn forget_environments(&self) {
        for entry in fs::read_dir(self.environments()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
        }
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

/// Tells the workers of zygotes to end; whether there was one.
fn end_zygotes(node: &Node) -> bool {
    let is_worker = |pid: &nix::unistd::Pid| {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        groups.lines().any(|line| line.contains("/zygote-") && line.ends_with("/worker"))
    };
    let workers: Vec<_> = node.processes().into_iter().filter(is_worker).collect();
    for worker in &workers {
        let _ = kill(*worker, Signal::SIGTERM); // it may have ended by itself
    }
    !workers.is_empty()
}

fn survives(kind: Kind, fault: Fault, least: usize) {
    let faulty = Faulty::new(kind);
    let mut calls = faulty.calls.clone();
    assert!(calls.len() > least, "{} calls", calls.len());
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
    println!("{tried} of {} calls of {kind:?} with {fault:?}", calls.len());
    for (words, times) in &told {
        println!("{times:4} {}", words.trim_end());
    }
    let missed = told.get(UNTOLD[0]).copied().unwrap_or_default();
    assert!(missed <= tried / 2, "{missed} of {tried} calls were not reached: nothing was tried there");
    faulty.node.stop();
}

macro_rules! tests {
    ($($name:ident: $kind:ident, $fault:expr, $least:literal;)*) => {
        $(#[test]
        fn $name() {
            survives(Kind::$kind, $fault, $least);
        })*
    };
}

const FAILS: Fault = Fault::Error(Errno::EIO);

// Kind of start, what happens at each of its calls, and how many calls it makes at least.
tests! {
    any_call_of_a_start_may_fail: Plain, FAILS, 300;
    a_worker_may_be_killed_at_any_call_of_a_start: Plain, Fault::Kill, 300;
    any_call_of_a_zygotes_start_may_fail: Zygote, FAILS, 300;
    a_zygotes_worker_may_be_killed_at_any_call_of_its_start: Zygote, Fault::Kill, 300;
    any_call_of_a_start_from_a_zygote_may_fail: Forked, FAILS, 100;
    a_worker_may_be_killed_at_any_call_of_a_start_from_a_zygote: Forked, Fault::Kill, 100;
    any_call_of_a_start_with_a_gpu_may_fail: Gpu, FAILS, 300;
    a_worker_may_be_killed_at_any_call_of_a_start_with_a_gpu: Gpu, Fault::Kill, 300;
    any_call_of_a_build_may_fail: Build, FAILS, 200;
    a_worker_may_be_killed_at_any_call_of_a_build: Build, Fault::Kill, 200;
}

/// The reader is the sandbox itself, on its way to the engine. A zygote that hangs there is not needed by its instance.
#[test]
fn a_lost_answer_of_the_proc_files_costs_only_its_start() {
    for kind in [Kind::Plain, Kind::Zygote] {
        let faulty = Faulty::new(kind);
        let writes = nix::libc::SYS_writev.cast_unsigned();
        let answers = |call: &&Place| call.number == writes && call.task != "worker";
        // Not all of them are made by each start.
        let lost = |told: &[String]| told.iter().filter(|told| *told != UNTOLD[0]).count();
        let mut told = Vec::new();
        for answer in faulty.calls.iter().filter(answers).cycle().take(ANSWERS) {
            told.push(faulty.try_at(answer, Fault::Error(Errno::EIO)));
            if lost(&told) == 2 {
                break;
            }
        }
        println!("{kind:?}: {told:?}");
        assert_eq!(lost(&told), 2, "{told:?}\n{}", faulty.node.log());
        let costs_its_start = |told: &String| !UNTOLD.contains(&told.as_str());
        assert_eq!(told.iter().any(costs_its_start), kind == Kind::Plain, "{told:?}\n{}", faulty.node.log());
        faulty.node.stop();
    }
}
