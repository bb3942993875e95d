//! Parameters in markup. Their values are not escaped, so the end mark of a value may also be a part of it.
//!
//! ```text
//!  between ──parameter──▶ value ──end mark that lets the rest parse──▶ between ──end of the call──▶ After
//! ```
//!
//! Pairs inside a value are balanced; an end mark without the right text behind it is text; of several ends of the whole call the last
//! one counts (vllm#44060). A value leaves when its end is known.

use super::{Next, Parser, State};
use crate::coerce::coerce;
use crate::cursor::{Cursor, Parsed, Stop};
use crate::grammar::{Fields, Parameter};
use crate::input::Use;
use crate::json::{quoted, valid};
use crate::marker::{self, Hit, TURN_ENDS};
use crate::tools::Types;
use omni_generation::Delta;
use std::collections::BTreeSet;

/// Progress through the parameters of a call.
#[derive(Debug)]
pub(super) struct FieldsState {
    fields: &'static Fields,
    tool: String,
    seen: BTreeSet<String>,
    value: Option<Value>,
}

/// Value that has begun; its text is at the beginning of the input.
#[derive(Debug)]
struct Value {
    parameter: Parameter,
    scanned: usize,
    /// Parameters that are open inside the value.
    depth: usize,
    /// A parameter was open inside the value.
    pairs: bool,
    /// Offset of an end mark that is right if no other follows.
    candidate: Option<usize>,
}

/// Text behind the end mark of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Follow {
    /// Another parameter, or the end of the call and of the answer or the beginning of another call.
    Certain,
    /// End of the call, and text.
    Text,
}

impl FieldsState {
    pub(super) fn new(fields: &'static Fields, tool: String) -> Self {
        Self { fields, tool, seen: BTreeSet::new(), value: None }
    }
}

impl Parser {
    pub(super) fn fields(&mut self, mut state: Box<FieldsState>, out: &mut Vec<Delta>) -> Next {
        if let Some(value) = state.value.take() {
            return self.field_value(state, value, out);
        }
        self.skip_blank();
        let rest = self.input.rest();
        let fields = state.fields;
        let mut cursor = Cursor::new(rest, self.end);
        let waits = match fields.parameter(&mut cursor) {
            Ok(parameter) => {
                let length = cursor.at();
                self.input.take(length, Use::Marker);
                state.value = Some(Value { parameter, scanned: 0, depth: 0, pairs: false, candidate: None });
                return Next::Go(State::Fields(state));
            }
            Err(stop) => stop == Stop::Need,
        };
        // Models leave the end of a call out (vllm#22885); where a text was cut off, more parameters may be missing.
        let is_open = self.cut && rest.is_empty();
        match Cursor::new(rest, self.end).literal(fields.call_close) {
            Err(stop) if waits || stop == Stop::Need => return Next::Wait(State::Fields(state)),
            Err(_) => {}
            Ok(()) => {
                self.input.take(fields.call_close.len(), Use::Marker);
            }
        }
        if !state.seen.is_empty() && !is_open {
            self.calls.arguments("}", out);
        }
        self.ended(out)
    }

    fn field_value(&mut self, mut state: Box<FieldsState>, mut value: Value, out: &mut Vec<Delta>) -> Next {
        let fields = state.fields;
        let end_at = loop {
            match self.next_mark(&state, &mut value) {
                Ok(Some(at)) => break Some(at),
                Ok(None) => {}
                Err(_) if !self.end => {
                    state.value = Some(value);
                    return Next::Wait(State::Fields(state));
                }
                Err(_) => {
                    let pairs = std::mem::take(&mut value.pairs);
                    self.nested &= !pairs;
                    if value.candidate.is_some() || !pairs {
                        break value.candidate;
                    }
                    (value.scanned, value.depth) = (0, 0);
                }
            }
        };
        let types = match value.parameter.string {
            Some(true) => Types::STRING,
            Some(false) | None => self.options.tools.types(&state.tool, &value.parameter.name),
        };
        let is_json = value.parameter.string == Some(false);
        let before = if state.seen.is_empty() { "{" } else { ", " };
        let key = format!("{before}{}: ", quoted(&value.parameter.name));
        self.calls.arguments(&key, out);
        let Some(end_at) = end_at else {
            self.cut_value(fields, out);
            return Next::Go(State::Text);
        };
        let raw = lines(fields, self.input.take(end_at, Use::Arguments), true);
        let json = valid(raw.trim()).filter(|_| is_json).map_or_else(|| coerce(raw, types), str::to_owned);
        self.calls.arguments(&json, out);
        self.input.take(fields.close.len(), Use::Marker);
        state.seen.insert(value.parameter.name);
        Next::Go(State::Fields(state))
    }

    /// Value without an end: what there is of it leaves, and the JSON stays open as the model has left it.
    fn cut_value(&mut self, fields: &Fields, out: &mut Vec<Delta>) {
        let text = quoted(lines(fields, self.input.take(usize::MAX, Use::Arguments), false));
        self.calls.arguments(text.strip_suffix('"').unwrap_or(&text), out);
    }

    /// Goes on to the next mark in a value: the offset of its end mark, if this is it. `Stop::Need`: no more marks so far.
    fn next_mark(&mut self, state: &FieldsState, value: &mut Value) -> Parsed<Option<usize>> {
        let fields = state.fields;
        let rest = self.input.rest();
        let openers = self.grammar.filter(|_| value.candidate.is_some()).map_or(&[][..], |grammar| grammar.openers);
        let marks: [&[&str]; 2] = [&[fields.close, fields.opener], openers];
        let at = match marker::find(rest, value.scanned, &marks, self.end) {
            Hit::Found(at, _) => at,
            Hit::Begun(at) => {
                value.scanned = at;
                return Err(Stop::Need);
            }
            Hit::Clear => {
                value.scanned = rest.len();
                return Err(Stop::Need);
            }
        };
        value.scanned = at;
        let text = rest.get(at..).unwrap_or_default();
        let mut cursor = Cursor::new(text, self.end);
        if text.starts_with(fields.opener) {
            match fields.parameter(&mut cursor) {
                Ok(_) if self.nested => {
                    value.depth += 1;
                    value.pairs = true;
                }
                Err(Stop::Need) => return Err(Stop::Need),
                Ok(_) | Err(Stop::No) => {}
            }
            value.scanned += fields.opener.len();
            return Ok(None);
        }
        if !text.starts_with(fields.close) {
            let open = self.grammar.map_or(Err(Stop::No), |grammar| (grammar.open)(&mut cursor, &self.options.tools));
            match open {
                Ok(_) if value.depth == 0 => return Ok(value.candidate),
                Err(Stop::Need) => return Err(Stop::Need),
                Ok(_) | Err(Stop::No) => {}
            }
            value.scanned += 1;
            return Ok(None);
        }
        if let Some(depth) = value.depth.checked_sub(1) {
            value.depth = depth;
            value.scanned += fields.close.len();
            return Ok(None);
        }
        cursor.advance(fields.close.len());
        let openers = self.grammar.map_or(&[][..], |grammar| grammar.openers);
        match follow(cursor, state, &value.parameter, openers) {
            Ok(Follow::Certain) => {
                self.outcome.ambiguous += usize::from(value.candidate.is_some());
                return Ok(Some(at));
            }
            Ok(Follow::Text) => self.outcome.ambiguous += usize::from(value.candidate.replace(at).is_some()),
            Err(Stop::Need) => return Err(Stop::Need),
            Err(Stop::No) => self.outcome.ambiguous += 1,
        }
        value.scanned += fields.close.len();
        Ok(None)
    }
}

/// Text behind the end mark of a value.
fn follow(mut cursor: Cursor<'_>, state: &FieldsState, current: &Parameter, openers: &[&str]) -> Parsed<Follow> {
    let fields = state.fields;
    cursor.blank();
    if cursor.is_end()? {
        return Ok(Follow::Certain);
    }
    match fields.parameter(&mut cursor.clone()) {
        Ok(next) if next.name == current.name || state.seen.contains(&next.name) => return Err(Stop::No),
        Ok(_) => return Ok(Follow::Certain),
        Err(Stop::Need) => return Err(Stop::Need),
        Err(Stop::No) => {}
    }
    if cursor.optional(&[fields.call_close])? {
        cursor.blank();
        if cursor.is_end()? {
            return Ok(Follow::Certain);
        }
        cursor.optional(fields.outer)?;
    } else {
        cursor.any(fields.outer)?;
    }
    cursor.blank();
    if cursor.is_end()? {
        return Ok(Follow::Certain);
    }
    let begins = cursor.optional(fields.next)? || cursor.optional(openers)? || cursor.optional(TURN_ENDS)?;
    Ok(if begins { Follow::Certain } else { Follow::Text })
}

/// Value without the line breaks of the markup. `whole`: its end is there as well.
fn lines<'a>(fields: &Fields, raw: &'a str, whole: bool) -> &'a str {
    if !fields.lines {
        return raw;
    }
    let Some(inner) = raw.strip_prefix('\n') else { return raw };
    if whole { inner.strip_suffix('\n').unwrap_or(inner) } else { inner }
}
