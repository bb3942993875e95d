//! Models with GPU memory on simulated cards: their code, their requests, and the card's record of them.
//!
//! Every model writes and reads all of its memory on the card at every request: data that a move lost, or gave to
//! another model, fails the request's own check.

use crate::process::start_time;
use crate::{Answer, Node};
use nix::unistd::Pid;
use omni_control_api::{GpuInstance, Gpus, Residency};
use omni_cuda_card::{Cause, Direction, Faults, Settings};
use serde_json::{Value, json};

/// The model's `model.py`.
pub const MODEL: &str = include_str!("gpu.py");
/// A program that takes GPU memory past the shim, of so many bytes as its argument says, and holds it.
pub const PAST_THE_SHIM: &str = include_str!("past_the_shim.py");
/// Bytes.
pub const MIB: u64 = 1 << 20;

impl Node {
    /// The node's GPUs and their instances, by the node.
    ///
    /// # Panics
    ///
    /// When the command fails.
    #[must_use]
    pub fn gpus(&self) -> Gpus {
        let said = self.omnictl(["gpu", "-o", "json"]);
        serde_json::from_str(&said.stdout).unwrap_or_else(|error| panic!("{error}: {said:?}"))
    }
}

/// A model that has `weights` MiB of GPU memory.
#[derive(Debug, Clone)]
pub struct GpuModel {
    name: String,
    weights: u64,
    limit: u64,
    mode: &'static str,
    extra: String,
}

/// A model whose limit is what it has.
#[must_use]
pub fn model(name: &str, weights: u64) -> GpuModel {
    GpuModel { name: name.to_owned(), weights, limit: weights, mode: "unified", extra: String::new() }
}

impl GpuModel {
    /// Sets `gpu-memory`, in MiB.
    #[must_use]
    pub fn limit(mut self, mib: u64) -> Self {
        self.limit = mib;
        self
    }

    /// Sets `gpu-mode` to `device`.
    #[must_use]
    pub fn device(mut self) -> Self {
        self.mode = "device";
        self
    }

    /// Adds lines to its manifest, behind its `[env]`.
    #[must_use]
    pub fn manifest(mut self, toml: &str) -> Self {
        self.extra.push_str(toml);
        self
    }

    /// Puts it into the models folder of a node that runs.
    pub fn publish(&self, node: &Node) {
        self.publish_as(node, MODEL);
    }

    /// The same with another `model.py`.
    pub fn publish_as(&self, node: &Node, code: &str) {
        let Self { name, weights, limit, mode, extra } = self;
        let manifest = format!(
            "schema = 1\n[resources]\nmemory = \"256MiB\"\ngpu-memory = \"{limit}MiB\"\ngpu-mode = \"{mode}\"\n\
             [env]\nWEIGHTS_MIB = \"{weights}\"\n{extra}"
        );
        node.publish(name, &[("model.py", code), ("omni.toml", &manifest)]);
        node.await_seen(name);
    }
}

/// A card of this many MiB.
#[must_use]
pub fn card(mib: u64) -> Settings {
    Settings { memory: mib * MIB, ..Settings::numbered(0) }
}

/// Every move takes so long. What is slow is the wait for its end, which each move has once: it begins with as many
/// calls as its memory has pieces, and how many those are is different at every start of a process.
#[must_use]
pub fn slow_moves(milliseconds: u64) -> Faults {
    Faults { slow_call: "cuStreamSynchronize".to_owned(), slow_milliseconds: milliseconds, ..Faults::default() }
}

/// Asks a model, which finds all of its data whole.
///
/// # Panics
/// When it does not.
pub fn ask(node: &Node, model: &str) -> Answer {
    let answer = node.http().run(model, &json!(null));
    assert_eq!(answer.status, 200, "{model}: {}\n{}", answer.text(), node.log_about(model));
    assert_eq!(answer.json()["result"]["whole"], true, "{model}: {}", answer.text());
    answer
}

/// Runs `code` in a model and returns its result.
///
/// # Panics
///
/// When the code fails.
#[must_use]
pub fn run(node: &Node, model: &str, code: &str) -> Value {
    let answer = node.http().run(model, &json!(code));
    assert_eq!(answer.status, 200, "{model}: {}\n{}", answer.text(), node.omnictl(["logs", model]).stdout);
    answer.json()["result"]["found"].clone()
}

/// The milliseconds of `server-timing: swap`; `None` when the request waited for no memory.
#[must_use]
pub fn swap(answer: &Answer) -> Option<f64> {
    let timing = answer.header("server-timing")?;
    timing.split(',').find_map(|part| part.trim().strip_prefix("swap;dur=")?.parse().ok())
}

/// A model's instance, as `omnictl gpu` has it.
#[must_use]
pub fn instance(node: &Node, model: &str) -> Option<GpuInstance> {
    node.gpus().gpus.into_iter().flat_map(|gpu| gpu.instances).find(|instance| instance.model == model)
}

/// Where a model's memory is, and how many MiB of it are on its card, as the node says.
#[must_use]
pub fn place(node: &Node, model: &str) -> Option<(Residency, u64)> {
    instance(node, model).map(|instance| (instance.residency, instance.resident_bytes / MIB))
}

/// Memory of a model on the first card, by the card, in MiB.
#[must_use]
pub fn on_card(node: &Node, model: &str) -> u64 {
    let Some(engine) = node.engine(model) else { return 0 };
    let state = node.cards()[0].state().unwrap();
    let own = state.processes.iter().filter(|process| Some(process.start_time) == start_time(engine));
    own.map(|process| process.resident + process.device).sum::<u64>() / MIB
}

/// Transfers over the link of the first card since it had seen `since` moves: model, direction, MiB. Consecutive moves
/// of one model in one direction are merged.
///
/// # Panics
///
/// When something moved for another reason than a prefetch, or of another process than these.
#[must_use]
pub fn crossed<'a>(node: &Node, since: u64, engines: &[(&'a str, Pid)]) -> Vec<(&'a str, Direction, u64)> {
    let state = node.cards()[0].state().unwrap();
    let fresh = usize::try_from(state.moved - since).expect("a few moves");
    let mut all: Vec<(&str, Direction, u64)> = Vec::new();
    for one in &state.moves[state.moves.len() - fresh..] {
        let own = |(_, engine): &&(&str, Pid)| start_time(*engine) == Some(one.start_time);
        let (model, _) = engines.iter().find(own).unwrap_or_else(|| panic!("{one:?} is of nobody"));
        match one.cause {
            Cause::Populate => continue,
            Cause::Prefetch => {}
            Cause::Fault | Cause::Eviction | Cause::Discard => panic!("{one:?} of {model}"),
        }
        match all.last_mut() {
            Some((last, direction, bytes)) if last == model && *direction == one.direction => *bytes += one.bytes / MIB,
            Some(_) | None => all.push((model, one.direction, one.bytes / MIB)),
        }
    }
    all
}

/// How many moves the first card has seen.
#[must_use]
pub fn moved(node: &Node) -> u64 {
    node.cards()[0].state().unwrap().moved
}
