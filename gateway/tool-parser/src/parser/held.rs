//! Text that is a call only as a whole: an answer without markers, Python calls, calls of Gemma, an object whose name comes last.
//!
//! A text that turns out to be none is content, all of it at once.

use super::{Next, Parser, State};
use crate::call::WholeCall;
use crate::cursor::{Cursor, Stop};
use crate::gemma;
use crate::grammar;
use crate::input::Use;
use crate::json::{Pause, Structure};
use crate::marker::{self, Hit, TURN_ENDS};
use crate::python;
use omni_generation::Delta;

/// Most bytes that are held; more is content.
const HELD_LIMIT: usize = 4 << 20;

/// Form of a text that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeldKind {
    /// JSON objects, with or without an array around them.
    Json,
    /// JSON object behind a marker.
    Object,
    /// Python calls.
    Python,
    /// Call of Gemma, up to the mark of its end.
    Gemma,
}

/// Text that is held.
#[derive(Debug)]
pub(super) struct Held {
    kind: HeldKind,
    /// Whole answer, without a marker; else one call, or one list of calls.
    is_answer: bool,
    structure: Structure,
    /// A string of Gemma is open.
    quoted: bool,
    scanned: usize,
    /// Values that are complete.
    values: Vec<(usize, usize)>,
    value_from: usize,
}

impl Held {
    pub(super) fn answer(kind: HeldKind) -> Self {
        Self { is_answer: true, ..Self::call(kind, 0) }
    }

    /// A call behind a marker that has, with white space before it, `prefix` bytes.
    pub(super) fn call(kind: HeldKind, prefix: usize) -> Self {
        let structure = if kind == HeldKind::Python { Structure::python() } else { Structure::default() };
        Self {
            kind,
            is_answer: false,
            structure,
            quoted: false,
            scanned: prefix,
            values: Vec::new(),
            value_from: prefix,
        }
    }

    /// Goes on to the end of the current value. Returns false if more text is needed.
    fn value(&mut self, text: &str, end: bool) -> bool {
        if self.kind == HeldKind::Gemma {
            return self.gemma(text, end);
        }
        while let Some(rest) = text.get(self.scanned..).filter(|rest| !rest.is_empty()) {
            match self.structure.scan(rest) {
                Pause::End(length) => {
                    self.scanned += length;
                    self.values.push((self.value_from, self.scanned));
                    return true;
                }
                Pause::Angle(at) => self.scanned += at + 1,
                Pause::Text => self.scanned = text.len(),
            }
        }
        false
    }

    /// Goes on to the mark of the end, outside of strings. The end of the text counts as well: engines may stop at the mark.
    fn gemma(&mut self, text: &str, end: bool) -> bool {
        loop {
            match marker::find(text, self.scanned, &[gemma::QUOTES, gemma::ENDS], end) {
                Hit::Found(at, length) => {
                    let is_end = text.get(at..at + length).is_some_and(|mark| gemma::ENDS.contains(&mark));
                    if is_end && !self.quoted {
                        self.scanned = at;
                        break;
                    }
                    self.quoted ^= !is_end;
                    self.scanned = at + length;
                }
                Hit::Begun(at) => {
                    self.scanned = at;
                    return false;
                }
                Hit::Clear => {
                    self.scanned = text.len();
                    if end {
                        break;
                    }
                    return false;
                }
            }
        }
        self.values.push((self.value_from, self.scanned));
        true
    }

    /// Goes on to the beginning of the next value of an answer. Returns true if one begins; `Stop::No`: other text follows.
    fn separator(&mut self, text: &str, end: bool) -> Result<bool, Stop> {
        loop {
            let rest = text.get(self.scanned..).unwrap_or_default();
            let rest = rest.trim_ascii_start();
            self.scanned = text.len() - rest.len();
            let is_first = self.values.is_empty();
            match (rest.bytes().next(), self.kind) {
                (None, _) => return Ok(false),
                (Some(b'{'), HeldKind::Json | HeldKind::Object) => break,
                (Some(b'['), HeldKind::Python) if is_first => break,
                (Some(b'['), HeldKind::Json) if is_first => self.scanned += 1,
                (Some(b',' | b';' | b']'), HeldKind::Json) if !is_first => self.scanned += 1,
                _ if is_first => return Err(Stop::No),
                _ => {
                    let mut cursor = Cursor::new(rest, end);
                    cursor.any(TURN_ENDS)?;
                    self.scanned += cursor.at();
                }
            }
        }
        self.value_from = self.scanned;
        Ok(true)
    }
}

impl Parser {
    pub(super) fn held(&mut self, mut held: Held, out: &mut Vec<Delta>) -> Next {
        let all = self.input.rest();
        let is_long = all.len() >= HELD_LIMIT;
        let rest = all.get(..all.floor_char_boundary(HELD_LIMIT)).unwrap_or(all);
        if !held.is_answer {
            return match held.value(rest, self.end && !is_long) {
                true => self.whole(&held, out),
                false if self.end || is_long => self.refuse(held.scanned, out),
                false => Next::Wait(State::Held(held)),
            };
        }
        if is_long {
            return Next::Go(State::Text);
        }
        loop {
            let begins = if held.structure.is_open() { Ok(true) } else { held.separator(rest, self.end) };
            match begins {
                Ok(true) if held.value(rest, false) => {}
                Ok(_) => break,
                Err(Stop::Need) => break,
                Err(Stop::No) => return Next::Go(State::Text),
            }
        }
        match self.end {
            false => Next::Wait(State::Held(held)),
            true if held.structure.is_open() => Next::Go(State::Text),
            true => self.whole(&held, out),
        }
    }

    /// End of a text that was held.
    fn whole(&mut self, held: &Held, out: &mut Vec<Delta>) -> Next {
        let text = |(from, to): &(usize, usize)| self.input.rest().get(*from..*to).unwrap_or_default();
        let parsed = match held.kind {
            HeldKind::Json | HeldKind::Object => held.values.iter().map(|value| grammar::whole(text(value))).collect(),
            HeldKind::Gemma => held.values.iter().map(|value| gemma::call(text(value))).collect(),
            HeldKind::Python => held.values.first().and_then(|value| python::calls(text(value))),
        };
        let offered =
            |calls: &Vec<WholeCall>| !held.is_answer || calls.iter().all(|call| self.options.tools.offers(&call.name));
        let Some(calls) = parsed.filter(offered) else {
            return if held.is_answer { Next::Go(State::Text) } else { self.refuse(held.scanned, out) };
        };
        for call in calls {
            if self.calls.is_full() {
                self.outcome.dropped = true;
                break;
            }
            self.calls.begin(&call.name, call.id, out);
            self.calls.arguments(&call.arguments, out);
            self.calls.end(out);
        }
        self.input.take(held.scanned, Use::Call);
        Next::Go(State::After)
    }

    /// Text that is no call is content: all of it, so that no part is read twice.
    fn refuse(&mut self, length: usize, out: &mut Vec<Delta>) -> Next {
        self.calls.content(self.input.take(length, Use::Content), out);
        Next::Go(State::Text)
    }
}
