//! Parts that leave the parser, and the numbers and ids of calls.

use super::ParserOptions;
use crate::ids::IdForm;
use omni_generation::Delta;

/// Writer of parts.
#[derive(Debug)]
pub(super) struct Calls {
    ids: IdForm,
    seed: u64,
    earlier: usize,
    /// Calls may be made at all, and more than one.
    pub(super) allowed: bool,
    parallel: bool,
    begun: usize,
    /// Arguments of the open call have begun.
    has_arguments: bool,
    /// Parts from here on came with the current piece and may still grow.
    mark: usize,
}

impl Calls {
    pub(super) fn new(ids: IdForm, options: &ParserOptions, allowed: bool) -> Self {
        Self {
            ids,
            seed: options.id_seed,
            earlier: options.earlier_calls,
            allowed,
            parallel: options.parallel_tool_calls,
            begun: 0,
            has_arguments: false,
            mark: 0,
        }
    }

    pub(super) fn mark(&mut self, out: &[Delta]) {
        self.mark = out.len();
    }

    pub(super) fn begun(&self) -> usize {
        self.begun
    }

    /// Returns true if no further call may be made.
    pub(super) fn is_full(&self) -> bool {
        !self.parallel && self.begun > 0
    }

    pub(super) fn content(&self, text: &str, out: &mut Vec<Delta>) {
        match self.last(out) {
            Some(Delta::Content(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => out.push(Delta::Content(text.to_owned())),
        }
    }

    pub(super) fn reasoning(&self, text: &str, out: &mut Vec<Delta>) {
        match self.last(out) {
            Some(Delta::Reasoning(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => out.push(Delta::Reasoning(text.to_owned())),
        }
    }

    /// Begins a call.
    pub(super) fn begin(&mut self, name: &str, id: Option<String>, out: &mut Vec<Delta>) {
        let made = || self.ids.make(self.seed, self.earlier + self.begun, name);
        let id = id.filter(|id| !id.is_empty()).unwrap_or_else(made);
        out.push(Delta::CallStart { call: self.begun, id, name: name.to_owned() });
        self.begun += 1;
        self.has_arguments = false;
    }

    /// Adds to the arguments of the open call.
    pub(super) fn arguments(&mut self, text: &str, out: &mut Vec<Delta>) {
        if text.is_empty() {
            return;
        }
        self.has_arguments = true;
        let call = self.begun.saturating_sub(1);
        match self.last(out) {
            Some(Delta::CallArguments { call: _, text: last }) => last.push_str(text),
            _ => out.push(Delta::CallArguments { call, text: text.to_owned() }),
        }
    }

    /// Ends the open call: one without arguments has an empty object (vllm#28806).
    pub(super) fn end(&mut self, out: &mut Vec<Delta>) {
        if !self.has_arguments {
            self.arguments("{}", out);
        }
    }

    fn last<'a>(&self, out: &'a mut [Delta]) -> Option<&'a mut Delta> {
        out.get_mut(self.mark..)?.last_mut()
    }
}
