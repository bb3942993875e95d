//! Messages of gpt-oss (harmony): each has a channel, and a recipient if it is a call.
//!
//! ```text
//!  <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>
//!  Idle ──header──▶ Body ──end──▶ Idle        header of a call ──▶ Value │ Raw ──▶ Idle
//! ```

use super::{Next, Parser, State};
use crate::cursor::{Cursor, Parsed, Stop};
use crate::input::Use;
use crate::json::Structure;
use crate::marker::{self, BLANK_LIMIT, Hit};
use omni_generation::Delta;

/// Ends of messages.
pub(super) const ENDS: &[&str] = &["<|end|>", "<|call|>", "<|return|>"];
/// Beginnings of headers.
pub(super) const BEGINS: &[&str] = &["<|start|>", "<|channel|>"];
const MARKS: &[&str] = &["<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"];
const MESSAGE: &str = "<|message|>";

/// Place in the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Channel {
    /// Beginning of the answer, whose header may be half in the prompt.
    Start,
    /// Between messages.
    Idle,
    /// Message of reasoning.
    Analysis,
    /// Message for the user.
    Final,
    /// Message to a function, at its beginning.
    Call,
}

/// Contents of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Header {
    Analysis,
    Final,
    /// Call of a function.
    Call(String),
}

impl Channel {
    pub(super) fn new(starts_in_reasoning: bool) -> Self {
        if starts_in_reasoning { Self::Analysis } else { Self::Start }
    }

    pub(super) fn after_call() -> Self {
        Self::Idle
    }
}

impl Parser {
    pub(super) fn channel(&mut self, channel: Channel, out: &mut Vec<Delta>) -> Next {
        match channel {
            Channel::Start => self.channel_start(out),
            Channel::Idle => self.idle(out),
            Channel::Analysis | Channel::Final => self.message(channel, out),
            Channel::Call => {
                self.skip_blank();
                match self.input.rest().bytes().next() {
                    None if !self.end => Next::Wait(State::Channel(Channel::Call)),
                    // Cut off: no arguments, not even empty ones.
                    None => Next::Go(State::Channel(Channel::Idle)),
                    Some(b'{') => Next::Go(State::Value(Structure::default(), 0)),
                    _ => Next::Go(State::Raw(MARKS)),
                }
            }
        }
    }

    /// The prompt may have ended within a header: ` to=functions.f<|channel|>…`.
    fn channel_start(&mut self, out: &mut Vec<Delta>) -> Next {
        let mut cursor = Cursor::new(self.input.rest(), self.end);
        cursor.blank();
        let found = if cursor.at() > BLANK_LIMIT { Err(Stop::No) } else { cursor.literal("to=") };
        match found {
            Ok(()) => self.header(0, Channel::Start, out),
            Err(Stop::Need) => Next::Wait(State::Channel(Channel::Start)),
            Err(Stop::No) => Next::Go(State::Channel(Channel::Idle)),
        }
    }

    fn idle(&mut self, out: &mut Vec<Delta>) -> Next {
        if self.after_mark {
            self.skip_blank();
        }
        let rest = self.input.rest();
        match marker::find(rest, 0, &[MARKS], self.end) {
            Hit::Clear => {
                self.after_mark &= rest.is_empty();
                self.calls.content(self.input.take(usize::MAX, Use::Content), out);
                Next::Wait(State::Channel(Channel::Idle))
            }
            Hit::Begun(at) => {
                self.calls.content(self.input.take(at, Use::Content), out);
                Next::Wait(State::Channel(Channel::Idle))
            }
            Hit::Found(at, length) => {
                let is_end = rest.get(at..at + length).is_some_and(|mark| ENDS.contains(&mark));
                self.calls.content(self.input.take(at, Use::Content), out);
                if !is_end {
                    return self.header(1, Channel::Idle, out);
                }
                self.input.take(length, Use::Marker);
                self.after_mark = true;
                Next::Go(State::Channel(Channel::Idle))
            }
        }
    }

    /// Header at the beginning of the input. `refused`: bytes that are content if it is none.
    fn header(&mut self, refused: usize, from: Channel, out: &mut Vec<Delta>) -> Next {
        let mut cursor = Cursor::new(self.input.rest(), self.end);
        match header(&mut cursor) {
            Err(Stop::Need) => Next::Wait(State::Channel(from)),
            Err(Stop::No) => {
                self.calls.content(self.input.take(refused, Use::Content), out);
                self.after_mark = false;
                Next::Go(State::Channel(Channel::Idle))
            }
            Ok(header) => {
                let length = cursor.at();
                let to = match header {
                    Header::Analysis => Channel::Analysis,
                    Header::Call(_) if self.calls.allowed && self.calls.is_full() => return Next::Go(State::Dropped),
                    Header::Call(name) if self.calls.allowed => {
                        self.calls.begin(&name, None, out);
                        Channel::Call
                    }
                    Header::Final | Header::Call(_) => Channel::Final,
                };
                self.input.take(length, Use::Marker);
                self.after_mark = true;
                Next::Go(State::Channel(to))
            }
        }
    }

    fn message(&mut self, channel: Channel, out: &mut Vec<Delta>) -> Next {
        let rest = self.input.rest();
        let (length, found) = match marker::find(rest, 0, &[MARKS], self.end) {
            Hit::Found(at, _) => (at, true),
            Hit::Begun(at) => (at, false),
            Hit::Clear => (rest.len(), false),
        };
        if channel == Channel::Analysis {
            self.calls.reasoning(self.input.take(length, Use::Reasoning), out);
        } else {
            self.calls.content(self.input.take(length, Use::Content), out);
        }
        if found { Next::Go(State::Channel(Channel::Idle)) } else { Next::Wait(State::Channel(channel)) }
    }
}

/// Header up to the message. A recipient makes it a call, whatever its channel.
fn header(cursor: &mut Cursor<'_>) -> Parsed<Header> {
    let text = cursor.until(MESSAGE)?;
    if ENDS.iter().any(|end| text.contains(end)) || text.matches("<|start|>").count() > 1 {
        return Err(Stop::No);
    }
    let word = |text: &str| {
        text.trim_start().split(|c: char| c.is_whitespace() || c == '<').next().unwrap_or_default().to_owned()
    };
    let channel = text.rsplit_once("<|channel|>").map(|(_, rest)| word(rest)).unwrap_or_default();
    let recipient = text.split("to=").nth(1).map(word).unwrap_or_default();
    let name = recipient.strip_prefix("functions.").unwrap_or(&recipient);
    Ok(match channel.as_str() {
        _ if !name.is_empty() && !matches!(name, "assistant" | "user" | "all") => Header::Call(name.to_owned()),
        "analysis" => Header::Analysis,
        _ => Header::Final,
    })
}
