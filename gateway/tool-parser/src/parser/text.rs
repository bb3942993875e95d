//! Reasoning, text, and the beginnings of calls in it.

use super::held::{Held, HeldKind};
use super::{Next, Parser, State};
use crate::cursor::{Cursor, Parsed, Stop};
use crate::grammar::{self, Body, Opening};
use crate::input::Use;
use crate::json::Structure;
use crate::marker::{self, BLANK_LIMIT, Hit, TURN_ENDS};
use crate::reasoning::ReasoningFormat;
use omni_generation::Delta;

impl Parser {
    /// Beginning of the answer.
    pub(super) fn start(&mut self) -> Next {
        let Some(format) = self.options.reasoning else { return Next::Go(State::Beginning) };
        let mut cursor = Cursor::new(self.input.rest(), self.end);
        cursor.blank();
        let found = if cursor.at() > BLANK_LIMIT { Err(Stop::No) } else { cursor.any(format.opens()) };
        match found {
            Ok(()) => {
                let length = cursor.at();
                self.input.take(length, Use::Marker);
                Next::Go(State::Reasoning(true))
            }
            Err(Stop::Need) => Next::Wait(State::Start),
            Err(_) if self.options.starts_in_reasoning => Next::Go(State::Reasoning(true)),
            Err(_) => Next::Go(State::Beginning),
        }
    }

    /// Reasoning up to its close, or to a call: models that reason leave the close out before a call. A call in the reasoning begins a
    /// line, has its tag and names a function that is offered; or it is marked with tokens of its own (Kimi K2).
    pub(super) fn reasoning(&mut self, mut at_start: bool, out: &mut Vec<Delta>) -> Next {
        if at_start {
            self.skip_blank();
        }
        let closes = self.options.reasoning.map_or(&[][..], |format| format.closes());
        let openers = self.grammar.map_or(&[][..], |grammar| grammar.openers);
        let rest = self.input.rest();
        let (until, length) = match marker::find(rest, 0, &[closes, openers], self.end) {
            Hit::Found(at, length) => (at, Some(length)),
            Hit::Begun(at) => (at, None),
            Hit::Clear => (rest.len(), None),
        };
        let (head, tail) = rest.split_at_checked(until).unwrap_or((rest, ""));
        let text = if self.end && tail.is_empty() { until } else { marker::trimmed(head) };
        let is_close = closes.iter().any(|close| tail.starts_with(close));
        let found = match length {
            Some(_) if is_close => Ok(()),
            Some(_) => self.call_in_reasoning(head, tail, at_start),
            None => Err(Stop::Need),
        };
        let first = tail.chars().next().map_or(0, char::len_utf8);
        let text = if found == Err(Stop::No) { until + first } else { text };
        at_start &= text == 0;
        self.calls.reasoning(self.input.take(text, Use::Reasoning), out);
        match found {
            Err(Stop::Need) => Next::Wait(State::Reasoning(at_start)),
            Err(Stop::No) => Next::Go(State::Reasoning(at_start)),
            Ok(()) => {
                self.input.take(until - text + length.filter(|_| is_close).unwrap_or_default(), Use::Marker);
                self.after_mark = true;
                self.reasoning_unclosed = !is_close;
                Next::Go(if self.in_text { State::Text } else { State::Beginning })
            }
        }
    }

    /// Marks that close reasoning which a call has ended.
    fn unclosed_reasoning(&self) -> &'static [&'static str] {
        let format = self.options.reasoning.filter(|_| self.reasoning_unclosed);
        format.map_or(&[][..], ReasoningFormat::closes)
    }

    fn call_in_reasoning(&self, head: &str, tail: &str, at_start: bool) -> Parsed<()> {
        let grammar = self.grammar.ok_or(Stop::No)?;
        let blank = head.get(marker::trimmed(head)..).unwrap_or_default();
        let is_line = blank.trim_end_matches([' ', '\t']).ends_with('\n') || (at_start && head.is_empty());
        let is_tagged = !tail.starts_with("<function");
        if !(is_line && is_tagged || grammar.ends_reasoning) {
            return Err(Stop::No);
        }
        let mut cursor = Cursor::new(tail, self.end);
        let name = match (grammar.open)(&mut cursor, &self.options.tools)? {
            Opening::Call(header) => header.name,
            Opening::List | Opening::Gemma => {
                cursor.optional(&["[", "call:"])?;
                cursor.blank();
                cursor.name()?.to_owned()
            }
            Opening::Object => return Err(Stop::No),
        };
        if grammar.ends_reasoning || self.options.tools.offers(&name) { Ok(()) } else { Err(Stop::No) }
    }

    /// Beginning of the text. Without markers the whole answer must have the form of calls of functions that are offered
    /// (llama.cpp#18183); a JSON object counts in every dialect (vllm#46863).
    pub(super) fn beginning(&mut self) -> Next {
        if self.after_mark {
            self.skip_blank();
        }
        let Some(_) = self.grammar else {
            let waits = self.after_mark && self.input.rest().is_empty();
            return if waits { Next::Wait(State::Beginning) } else { Next::Go(State::Text) };
        };
        let rest = self.input.rest();
        let mut cursor = Cursor::new(rest, self.end);
        let found = bare(&mut cursor).and_then(|kind| match kind {
            HeldKind::Json | HeldKind::Object => grammar::bare(&mut cursor, &self.options.tools).map(|()| kind),
            HeldKind::Python => self.bare_python(&mut cursor).map(|()| kind),
            HeldKind::Gemma => Err(Stop::No),
        });
        match found {
            Ok(kind) => Next::Go(State::Held(Held::answer(kind))),
            Err(Stop::Need) => Next::Wait(State::Beginning),
            Err(Stop::No) => Next::Go(State::Text),
        }
    }

    fn bare_python(&self, cursor: &mut Cursor<'_>) -> Parsed<()> {
        let name = cursor.name()?;
        cursor.literal("(")?;
        if self.options.tools.offers(name) { Ok(()) } else { Err(Stop::No) }
    }

    pub(super) fn text(&mut self, out: &mut Vec<Delta>) -> Next {
        let openers = self.grammar.map_or(&[][..], |grammar| grammar.openers);
        let wraps = self.options.reasoning.map_or(&[][..], |format| format.wraps());
        let closes = self.unclosed_reasoning();
        if self.grammar.is_none() && wraps.is_empty() {
            self.calls.content(self.input.take(usize::MAX, Use::Content), out);
            return Next::Wait(State::Text);
        }
        if self.after_mark {
            self.skip_blank();
            self.after_mark = self.input.rest().is_empty();
        }
        self.in_text = true;
        let rest = self.input.rest();
        let hit = marker::find(rest, 0, &[openers, wraps, closes], self.end);
        let until = match hit {
            Hit::Found(at, _) | Hit::Begun(at) => at,
            Hit::Clear => rest.len(),
        };
        let head = rest.get(..until).unwrap_or_default();
        let text = if hit == Hit::Clear && self.end { until } else { marker::trimmed(head) };
        let Hit::Found(_, length) = hit else {
            self.calls.content(self.input.take(text, Use::Content), out);
            return Next::Wait(State::Text);
        };
        let tail = rest.get(until..).unwrap_or_default();
        let is_wrap = |wrap: &&str| tail.get(..length) == Some(*wrap);
        let is_close = closes.iter().any(is_wrap);
        if is_close || wraps.iter().any(is_wrap) {
            self.reasoning_unclosed &= !is_close;
            let opens = self.options.reasoning.is_some_and(|format| format.opens().iter().any(is_wrap));
            self.calls.content(self.input.take(text, Use::Content), out);
            self.input.take(until - text + length, Use::Marker);
            self.after_mark = true;
            return Next::Go(if opens { State::Reasoning(true) } else { State::Text });
        }
        let mut cursor = Cursor::new(tail, self.end);
        let found = self.grammar.ok_or(Stop::No).and_then(|grammar| (grammar.open)(&mut cursor, &self.options.tools));
        let length = until - text + cursor.at();
        let first = tail.chars().next().map_or(0, char::len_utf8);
        match found {
            Ok(opening) => {
                self.calls.content(self.input.take(text, Use::Content), out);
                self.opened(opening, length, out)
            }
            Err(Stop::Need) => {
                self.calls.content(self.input.take(text, Use::Content), out);
                Next::Wait(State::Text)
            }
            Err(Stop::No) => {
                self.calls.content(self.input.take(until + first, Use::Content), out);
                Next::Go(State::Text)
            }
        }
    }

    /// Beginning of a call whose header, with the white space before it, has `length` bytes.
    pub(super) fn opened(&mut self, opening: Opening, length: usize, out: &mut Vec<Delta>) -> Next {
        let Opening::Call(header) = opening else {
            let kind = match opening {
                Opening::List => HeldKind::Python,
                Opening::Gemma => HeldKind::Gemma,
                Opening::Object | Opening::Call(_) => HeldKind::Object,
            };
            return Next::Go(State::Held(Held::call(kind, length)));
        };
        if self.calls.is_full() {
            return Next::Go(State::Dropped);
        }
        self.input.take(length, Use::Marker);
        self.calls.begin(&header.name, header.id, out);
        match header.body {
            Body::Value(nesting) => Next::Go(State::Value(Structure::default(), nesting)),
            Body::Raw(markers) => Next::Go(State::Raw(markers)),
            Body::Fields(fields) => Next::Go(State::Fields(Box::new(super::FieldsState::new(fields, header.name)))),
            Body::Empty => self.ended(out),
        }
    }

    /// End of a call.
    pub(super) fn ended(&mut self, out: &mut Vec<Delta>) -> Next {
        self.calls.end(out);
        Next::Go(State::After)
    }

    /// Behind a call: another one, the markers that close it, or text.
    pub(super) fn after(&mut self, out: &mut Vec<Delta>) -> Next {
        self.skip_blank();
        let Some(grammar) = self.grammar else { return Next::Go(State::Channel(super::Channel::after_call())) };
        let rest = self.input.rest();
        let new = || Cursor::new(rest, self.end);
        let mut waits = rest.is_empty() && !self.end;
        for rule in [grammar.next, grammar.open] {
            let mut cursor = new();
            match rule(&mut cursor, &self.options.tools) {
                Ok(opening) => {
                    let length = cursor.at();
                    return self.opened(opening, length, out);
                }
                Err(stop) => waits |= stop == Stop::Need,
            }
        }
        let mut cursor = new();
        let closes = self.unclosed_reasoning();
        for markers in [grammar.closers, TURN_ENDS, closes] {
            match cursor.any(markers) {
                Ok(()) => {
                    let length = cursor.at();
                    let taken = self.input.take(length, Use::Marker);
                    self.reasoning_unclosed &= !closes.contains(&taken);
                    return Next::Go(State::After);
                }
                Err(stop) => waits |= stop == Stop::Need,
            }
        }
        if waits { Next::Wait(State::After) } else { Next::Go(State::Text) }
    }

    pub(super) fn skip_blank(&mut self) {
        let rest = self.input.rest();
        let blank = rest.len() - rest.trim_ascii_start().len();
        if blank > 0 {
            self.input.take(blank, Use::Marker);
        }
    }
}

/// Kind of an answer without markers; the cursor is at its first object or call then.
fn bare(cursor: &mut Cursor<'_>) -> Parsed<HeldKind> {
    cursor.blank();
    if cursor.at() > BLANK_LIMIT {
        return Err(Stop::No);
    }
    if cursor.optional(&["["])? {
        cursor.blank();
        return Ok(if cursor.peek()? == b'{' { HeldKind::Json } else { HeldKind::Python });
    }
    if cursor.peek()? == b'{' { Ok(HeldKind::Json) } else { Err(Stop::No) }
}
