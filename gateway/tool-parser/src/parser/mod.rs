//! The state machine that turns text into parts of an answer.
//!
//! ```text
//!                ┌──▶ Reasoning ──┐        ┌──▶ Held ────────┐ the whole answer, or a whole call
//!   Start ───────┴────────────────┴──▶ Beginning             │
//!                                          ▼                 ▼
//!            ┌──────────────────────────▶ Text ──▶ call ──▶ After ──▶ Dropped
//!            └───────────────────────────────────────────────┘
//!   call: Value ──▶ Tail │ Encoded ──▶ Tail │ Raw │ Fields
//!
//!   Channel: messages of gpt-oss, from which a call leads to Value and back
//! ```
//!
//! Invariants: every byte of the input leaves it once and in order; a state waits only for text that decides.

mod arguments;
mod calls;
mod channel;
mod fields;
mod held;
mod text;

use crate::dialect::Dialect;
use crate::grammar::Grammar;
use crate::input::{Input, Use};
use crate::json::Structure;
use crate::reasoning::ReasoningFormat;
use crate::tools::CompiledTools;
use calls::Calls;
use channel::Channel;
use fields::FieldsState;
use held::Held;
use omni_generation::{Delta, ToolChoice};
use std::sync::Arc;

/// Facts of a request that decide how its answer is parsed.
#[derive(Debug, Clone)]
pub struct ParserOptions {
    /// Tools that are offered. Without tools, calls are not looked for.
    pub tools: Arc<CompiledTools>,
    /// Choice between text and calls. `None`: markup of calls stays text. `Required` and `Named` change nothing here: see
    /// [`Outcome::calls`].
    pub tool_choice: ToolChoice,
    /// More than one call; else the text from the second call on is dropped.
    pub parallel_tool_calls: bool,
    /// Form of the model's reasoning. gpt-oss marks it with channels and needs none.
    pub reasoning: Option<ReasoningFormat>,
    /// The prompt ends inside of the reasoning: see [`ReasoningFormat::is_open`].
    pub starts_in_reasoning: bool,
    /// Random number of this choice, from which the ids of calls are made.
    pub id_seed: u64,
    /// Number of calls in the conversation so far: Kimi K2 numbers all of them.
    pub earlier_calls: usize,
}

impl Default for ParserOptions {
    /// No tools, no reasoning: all is text.
    fn default() -> Self {
        Self {
            tools: Arc::default(),
            tool_choice: ToolChoice::Auto,
            parallel_tool_calls: true,
            reasoning: None,
            starts_in_reasoning: false,
            id_seed: 0,
            earlier_calls: 0,
        }
    }
}

/// Summary of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Number of calls. With a call, an answer that the model has ended finishes for tool calls, on every path (vllm#9209); one that
    /// the limit of tokens has ended does not, since its last call may be open. Without a call although one was required or named,
    /// the model did not comply, and its text stands as content.
    pub calls: usize,
    /// Calls after the first were dropped: the rest of the answer is not needed.
    pub dropped: bool,
    /// Values in which the end mark of a value stood as text; worth a line in the log (vllm#44060).
    pub ambiguous: usize,
}

/// Parser of one choice.
#[derive(Debug)]
pub struct Parser {
    grammar: Option<&'static Grammar>,
    options: ParserOptions,
    calls: Calls,
    input: Input,
    state: State,
    /// No more text will come.
    end: bool,
    /// The model did not end the text.
    cut: bool,
    /// A call has ended the reasoning: its close may still come, and is no text.
    reasoning_unclosed: bool,
    /// White space since the last mark belongs to it.
    after_mark: bool,
    /// The text has begun: reasoning that comes later is followed by more of it.
    in_text: bool,
    /// Values in markup are searched for nested pairs; not any more after one was left open.
    nested: bool,
    outcome: Outcome,
}

#[derive(Debug)]
enum State {
    /// Text without any markers.
    Plain,
    /// Beginning of the answer: reasoning may open.
    Start,
    /// Reasoning; true at its beginning.
    Reasoning(bool),
    /// Beginning of the text: an answer without markers may be a call.
    Beginning,
    /// Text that markers may end.
    Text,
    /// Text that is a call only as a whole.
    Held(Held),
    /// JSON value inside a number of objects.
    Value(Structure, u8),
    /// JSON in a JSON string, inside a number of objects.
    Encoded(u8),
    /// Rest of the objects around the arguments.
    Tail(u8),
    /// Arguments of any form, up to one of these markers.
    Raw(&'static [&'static str]),
    /// Parameters in markup.
    Fields(Box<FieldsState>),
    /// Behind a call.
    After,
    /// Behind the only call that may be made.
    Dropped,
    /// Messages of gpt-oss.
    Channel(Channel),
}

/// Next state, at once or with more text.
enum Next {
    Go(State),
    Wait(State),
}

impl Parser {
    /// Makes the parser of a choice.
    #[must_use]
    pub fn new(dialect: Dialect, options: ParserOptions) -> Self {
        let calls = !options.tools.is_empty() && options.tool_choice != ToolChoice::None;
        let grammar = dialect.grammar().filter(|_| calls);
        let state = match () {
            () if dialect == Dialect::Harmony => State::Channel(Channel::new(options.starts_in_reasoning)),
            () if options.reasoning.is_none() && grammar.is_none() => State::Plain,
            () => State::Start,
        };
        let calls = Calls::new(dialect.ids(), &options, calls);
        Self {
            grammar,
            options,
            calls,
            input: Input::default(),
            state,
            end: false,
            cut: false,
            reasoning_unclosed: false,
            after_mark: false,
            in_text: false,
            nested: true,
            outcome: Outcome::default(),
        }
    }

    /// Takes text; the parts that it decides are added to `out`.
    pub fn push(&mut self, text: &str, out: &mut Vec<Delta>) {
        if text.is_empty() || self.end {
            return;
        }
        self.calls.mark(out);
        if matches!(self.state, State::Plain) {
            self.calls.content(text, out);
            return;
        }
        self.input.push(text);
        self.run(out);
    }

    /// Ends the text: the rest is decided and added to `out`.
    pub fn finish(&mut self, out: &mut Vec<Delta>) -> Outcome {
        if !self.end {
            self.end = true;
            self.calls.mark(out);
            self.run(out);
        }
        self.outcome()
    }

    /// Ends a text that the limit of tokens has cut: a call in markup without its end stays open.
    pub fn finish_cut(&mut self, out: &mut Vec<Delta>) -> Outcome {
        self.cut = true;
        self.finish(out)
    }

    /// Summary so far.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        Outcome { calls: self.calls.begun(), ..self.outcome }
    }

    fn run(&mut self, out: &mut Vec<Delta>) {
        loop {
            let state = std::mem::replace(&mut self.state, State::Plain);
            match self.step(state, out) {
                Next::Go(state) => self.state = state,
                Next::Wait(state) => {
                    self.state = state;
                    return;
                }
            }
        }
    }

    fn step(&mut self, state: State, out: &mut Vec<Delta>) -> Next {
        match state {
            State::Plain => Next::Wait(State::Plain),
            State::Start => self.start(),
            State::Reasoning(at_start) => self.reasoning(at_start, out),
            State::Beginning => self.beginning(),
            State::Text => self.text(out),
            State::Held(held) => self.held(held, out),
            State::Value(structure, nesting) => self.value(structure, nesting, out),
            State::Encoded(nesting) => self.encoded(nesting, out),
            State::Tail(nesting) => self.tail(nesting, out),
            State::Raw(markers) => self.raw(markers, out),
            State::Fields(fields) => self.fields(fields, out),
            State::After => self.after(out),
            State::Dropped => {
                self.outcome.dropped = true;
                self.input.take(usize::MAX, Use::Dropped);
                Next::Wait(State::Dropped)
            }
            State::Channel(channel) => self.channel(channel, out),
        }
    }
}

#[cfg(test)]
mod tests;
