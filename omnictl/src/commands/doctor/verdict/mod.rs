//! From facts to lines: what is there, what is missing, what that costs, how to mend it. Pure.
//!
//! Groups of lines are in files of their own. Invariants: a line that is not ok says what it costs and how to mend it;
//! missing is only what a node cannot serve without, everything else degrades it.

mod gpu;
mod host;
mod models;
mod sandbox;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use omni_machine::{Machine, Probe, Service};
use serde::Serialize;

/// Answers of the node's programs.
pub(super) enum Answers {
    /// The programs are not on this machine.
    NoPrograms,
    /// Facts of each program, or the reason why it did not answer.
    Programs {
        /// Directory of the programs.
        place: PathBuf,
        /// True if the program that runs an instance is there, too.
        worker: bool,
        /// Facts of the launcher.
        machine: Result<Box<Machine>, String>,
        /// Facts of the scheduler.
        service: Result<Service, String>,
    },
}

/// State of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum State {
    /// As it should be.
    Ok,
    /// A node serves without it, and something is lost.
    Degraded,
    /// A node cannot serve without it.
    Missing,
    /// Could not be tried.
    Unknown,
}

impl State {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Missing => "missing",
            Self::Unknown => "unknown",
        }
    }
}

/// A thing that a node needs, or does better with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Line {
    pub(super) check: String,
    pub(super) state: State,
    /// A node cannot serve without it.
    pub(super) needed: bool,
    /// The finding, or the system's error.
    pub(super) found: String,
    /// Consequence of the state as it is.
    pub(super) cost: Option<String>,
    /// Remedy.
    pub(super) mend: Option<String>,
}

/// A thing before it is looked at.
struct Check {
    name: String,
    needed: bool,
    cost: String,
    mend: String,
}

impl Check {
    /// Something that a node cannot serve without.
    fn needed(name: impl Into<String>, cost: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { name: name.into(), needed: true, cost: cost.into(), mend: mend.into() }
    }

    /// Something that a node serves without, and loses something.
    fn wanted(name: impl Into<String>, cost: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { needed: false, ..Self::needed(name, cost, mend) }
    }

    fn ok(self, found: impl Into<String>) -> Line {
        let Self { name, needed, .. } = self;
        Line { check: name, state: State::Ok, needed, found: found.into(), cost: None, mend: None }
    }

    fn failed(self, found: impl Into<String>) -> Line {
        let state = if self.needed { State::Missing } else { State::Degraded };
        self.with(state, found)
    }

    fn unknown(self, why: impl Into<String>) -> Line {
        self.with(State::Unknown, why)
    }

    fn with(self, state: State, found: impl Into<String>) -> Line {
        let Self { name, needed, cost, mend } = self;
        Line { check: name, state, needed, found: found.into(), cost: Some(cost), mend: Some(mend) }
    }

    /// By whether what was found is enough.
    fn enough(self, is_enough: bool, found: impl Into<String>) -> Line {
        if is_enough { self.ok(found) } else { self.failed(found) }
    }

    /// A line by a number that is enough or not, with its text; `None` when it `cannot` be read.
    fn known(self, found: Option<(bool, String)>, cannot: &str) -> Line {
        match found {
            Some((is_enough, told)) => self.enough(is_enough, told),
            None => self.unknown(cannot),
        }
    }

    /// By how a trial ended.
    fn tried<T>(self, trial: &Probe<T>, found: impl FnOnce(&T) -> String) -> Line {
        match trial {
            Probe::Works(value) => self.ok(found(value)),
            Probe::Fails(words) => self.failed(words),
            Probe::Untried(why) => self.unknown(why),
        }
    }
}

/// Every line, in the order in which they are mended. `running`: what a node that runs says of its listeners.
pub(super) fn lines(asked: &Answers, running: Option<&[String]>) -> Vec<Line> {
    let Answers::Programs { place, worker, machine, service } = asked else {
        return vec![host::no_programs()];
    };
    let mut lines = vec![host::programs(place, *worker, machine.as_ref().err())];
    if let Ok(machine) = machine {
        lines.extend(host::lines(machine));
        lines.extend(sandbox::lines(machine));
        lines.extend(models::lines(machine));
        lines.extend(host::listeners(service, running));
        lines.extend(gpu::lines(&machine.gpu, service));
        if machine.identity.uid != 0 {
            // Before anything is mended, it has to be known.
            let unknown = lines.iter_mut().filter(|line| line.state == State::Unknown);
            unknown.for_each(|line| line.mend = Some(host::AS_ROOT.to_owned()));
        }
    }
    lines
}

/// True if a node can serve models; `None` when something that it needs could not be tried.
pub(super) fn serves(lines: &[Line]) -> Option<bool> {
    let any = |state| lines.iter().any(|line| line.needed && line.state == state);
    match (any(State::Missing), any(State::Unknown)) {
        (true, _) => Some(false),
        (false, true) => None,
        (false, false) => Some(true),
    }
}
