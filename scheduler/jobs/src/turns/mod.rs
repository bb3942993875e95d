//! Turns of the batches that have items for one model. Pure.
//!
//! A suspect, an item that was in flight when an instance died, runs alone on its model; all other items run beside each
//! other. So neither a batch with suspects nor one without any may claim as often as it likes: the model would
//! always be in use for the other. A claim that cannot be granted waits in a line, and one that would be in the way of
//! an earlier one waits behind it. After a suspect each batch before it in the line has its turn, and the next suspect
//! has its own when what these have claimed is done.
//!
//! A batch waits as long as it goes on asking: callers ask for each batch about equally often. One that does not ask
//! between two claims of another has lost its place: it is cancelled, or has no seats now.

#[cfg(test)]
mod tests;

use std::collections::HashMap;

/// Way in which the next items of a batch run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Beside other items.
    Shared,
    /// Alone on the model: a suspect.
    Alone,
}

/// Items of a model that are in flight, of all batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Running {
    pub(crate) all: u64,
    pub(crate) suspects: u64,
}

/// Lines of all models. A model without a line has no batch that waits.
#[derive(Debug, Default)]
pub(crate) struct Turns(HashMap<String, Line>);

impl Turns {
    /// Returns whether a batch may claim items of a model now. If not, it has a place in the line.
    pub(crate) fn admit(&mut self, model: &str, batch: i64, mode: Mode, running: Running) -> bool {
        let free = match mode {
            Mode::Shared => running.suspects == 0,
            Mode::Alone => running.all == 0,
        };
        let Some(line) = self.0.get_mut(model) else {
            if !free {
                self.0.entry(model.to_owned()).or_default().wait(batch, mode);
            }
            return free;
        };
        let admitted = line.is_first(batch, mode) && free;
        if admitted {
            line.leave(batch);
            self.remove_empty();
        } else {
            line.wait(batch, mode);
        }
        admitted
    }

    /// Removes a batch that has ended from all lines.
    pub(crate) fn forget(&mut self, batch: i64) {
        self.0.values_mut().for_each(|line| line.leave(batch));
        self.remove_empty();
    }

    fn remove_empty(&mut self) {
        self.0.retain(|_, line| !line.waiting.is_empty());
    }
}

/// Batches that wait for one model, the next first.
#[derive(Debug, Default)]
struct Line {
    waiting: Vec<Waiting>,
    /// Claims that had to wait, so far.
    claims: u64,
}

/// Batch that waits.
#[derive(Debug)]
struct Waiting {
    batch: i64,
    mode: Mode,
    /// Number of its last claim.
    claim: u64,
}

impl Line {
    /// Returns whether no other batch is before this one, after those that do not ask any more have lost their places.
    fn is_first(&mut self, batch: i64, mode: Mode) -> bool {
        if let Some(last) = self.waiting.iter().find(|waiting| waiting.batch == batch).map(|own| own.claim) {
            self.waiting.retain(|waiting| waiting.claim >= last);
        }
        let mut before = self.waiting.iter().take_while(|waiting| waiting.batch != batch);
        before.all(|waiting| mode == Mode::Shared && waiting.mode == Mode::Shared)
    }

    fn wait(&mut self, batch: i64, mode: Mode) {
        self.claims += 1;
        let claim = self.claims;
        match self.waiting.iter_mut().find(|waiting| waiting.batch == batch) {
            Some(own) => (own.mode, own.claim) = (mode, claim),
            None => self.waiting.push(Waiting { batch, mode, claim }),
        }
    }

    fn leave(&mut self, batch: i64) {
        self.waiting.retain(|waiting| waiting.batch != batch);
    }
}
