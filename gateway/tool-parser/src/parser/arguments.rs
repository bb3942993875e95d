//! Arguments that leave as the model writes them: nothing is completed or repaired (vllm#10395).

use super::{Next, Parser, State, channel};
use crate::cursor::{Cursor, Stop};
use crate::grammar;
use crate::input::Use;
use crate::json::{self, Pause, Structure};
use crate::marker::{self, Hit};
use omni_generation::Delta;

impl Parser {
    pub(super) fn value(&mut self, mut structure: Structure, nesting: u8, out: &mut Vec<Delta>) -> Next {
        let rest = self.input.rest();
        if !structure.is_open() {
            match rest.bytes().next() {
                None if self.end => return self.ended(out),
                None => return Next::Wait(State::Value(structure, nesting)),
                Some(b'{' | b'[') => {}
                Some(b'"') => {
                    self.input.take(1, Use::Marker);
                    return Next::Go(State::Encoded(nesting));
                }
                Some(_) => return self.scalar(nesting, out),
            }
        }
        match structure.scan(rest) {
            Pause::End(length) => {
                self.calls.arguments(self.input.take(length, Use::Arguments), out);
                self.complete(nesting, out)
            }
            Pause::Text => {
                self.calls.arguments(self.input.take(usize::MAX, Use::Arguments), out);
                Next::Wait(State::Value(structure, nesting))
            }
            Pause::Angle(at) => {
                self.calls.arguments(self.input.take(at, Use::Arguments), out);
                self.angle(structure, nesting, out)
            }
        }
    }

    /// A `<` outside strings: a marker here ends arguments whose brackets the model has left open.
    fn angle(&mut self, structure: Structure, nesting: u8, out: &mut Vec<Delta>) -> Next {
        let lists = self.grammar.map_or([channel::ENDS, channel::BEGINS], |grammar| [grammar.closers, grammar.openers]);
        let mut cursor = Cursor::new(self.input.rest(), self.end);
        let mut waits = false;
        for markers in lists {
            match cursor.any(markers) {
                Ok(()) => return self.ended(out),
                Err(stop) => waits |= stop == Stop::Need,
            }
        }
        if waits {
            return Next::Wait(State::Value(structure, nesting));
        }
        self.calls.arguments(self.input.take(1, Use::Arguments), out);
        Next::Go(State::Value(structure, nesting))
    }

    /// Number or word in the place of the arguments; `null` is no arguments.
    fn scalar(&mut self, nesting: u8, out: &mut Vec<Delta>) -> Next {
        let mut cursor = Cursor::new(self.input.rest(), self.end);
        match cursor.name() {
            Err(Stop::Need) => return Next::Wait(State::Value(Structure::default(), nesting)),
            Err(Stop::No) => return self.ended(out),
            Ok("null") => {
                self.input.take("null".len(), Use::Marker);
            }
            Ok(word) => {
                let length = word.len();
                self.calls.arguments(self.input.take(length, Use::Arguments), out);
            }
        }
        self.complete(nesting, out)
    }

    fn complete(&mut self, nesting: u8, out: &mut Vec<Delta>) -> Next {
        if nesting > 0 { Next::Go(State::Tail(nesting)) } else { self.ended(out) }
    }

    /// JSON in a JSON string: the text of the string is the arguments.
    pub(super) fn encoded(&mut self, nesting: u8, out: &mut Vec<Delta>) -> Next {
        let (text, length, closed) = json::unescape(self.input.rest(), self.end);
        self.input.take(length, Use::Arguments);
        self.calls.arguments(&text, out);
        if closed { self.complete(nesting, out) } else { Next::Wait(State::Encoded(nesting)) }
    }

    /// Rest of the objects around the arguments. Other text there, or brackets that are missing, do not take the call back.
    pub(super) fn tail(&mut self, nesting: u8, out: &mut Vec<Delta>) -> Next {
        let mut cursor = Cursor::new(self.input.rest(), self.end);
        match grammar::tail(&mut cursor, nesting) {
            Err(Stop::Need) => Next::Wait(State::Tail(nesting)),
            Err(Stop::No) => self.ended(out),
            Ok(()) => {
                let length = cursor.at();
                self.input.take(length, Use::Marker);
                self.ended(out)
            }
        }
    }

    pub(super) fn raw(&mut self, markers: &'static [&'static str], out: &mut Vec<Delta>) -> Next {
        let rest = self.input.rest();
        let (length, found) = match marker::find(rest, 0, &[markers], self.end) {
            Hit::Found(at, _) => (at, true),
            Hit::Begun(at) => (at, false),
            Hit::Clear => (rest.len(), false),
        };
        self.calls.arguments(self.input.take(length, Use::Arguments), out);
        if found || (self.end && self.input.rest().is_empty()) {
            return self.ended(out);
        }
        Next::Wait(State::Raw(markers))
    }
}
