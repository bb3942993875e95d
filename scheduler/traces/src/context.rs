//! W3C Trace Context (Recommendation of 2021-11-23): the headers `traceparent` and `tracestate`.
//!
//! Invariant: what is not valid is left out, and never an error: without a valid `traceparent` there is no context,
//! with one and without a valid `tracestate` there is no state.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

/// Bytes of a `traceparent` of version 00.
const LENGTH: usize = 55;
/// Version that no `traceparent` may have.
const FORBIDDEN: u8 = 0xff;
/// Flag of a trace whose caller may have recorded it.
const SAMPLED: u8 = 1;
/// Flag of a trace whose id is random (level 2): passed on as it came.
const RANDOM: u8 = 2;
/// Most members of a `tracestate`.
const MOST_MEMBERS: usize = 32;
/// Most bytes of a `tracestate` that is passed on.
const LONGEST_STATE: usize = 512;
/// Members of more bytes leave first when a `tracestate` is too long.
const LONG_MEMBER: usize = 128;
/// Most bytes of a key, and of a value.
const LONGEST_PART: usize = 256;
/// Most bytes of a key's tenant, and of its system.
const LONGEST_TENANT: (usize, usize) = (241, 14);

/// Id of a trace, not zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(u128);

/// Id of a span, not zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId(u64);

/// Place of a request in a trace: the span that it was sent by, and what all of the trace share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace: TraceId,
    /// The span that has sent the request.
    pub span: SpanId,
    flags: u8,
    /// Value of `tracestate`.
    state: Option<Arc<str>>,
}

impl TraceId {
    /// The id of these bits; `None` for zero.
    #[must_use]
    pub fn new(bits: u128) -> Option<Self> {
        (bits != 0).then_some(Self(bits))
    }
}

impl SpanId {
    /// The id of these bits; `None` for zero.
    #[must_use]
    pub fn new(bits: u64) -> Option<Self> {
        (bits != 0).then_some(Self(bits))
    }
}

impl Display for TraceId {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        write!(out, "{:032x}", self.0)
    }
}

impl Display for SpanId {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        write!(out, "{:016x}", self.0)
    }
}

impl TraceContext {
    /// The context of a new trace, which is recorded or not.
    #[must_use]
    pub fn new(trace: TraceId, span: SpanId, sampled: bool) -> Self {
        Self { trace, span, flags: u8::from(sampled), state: None }
    }

    /// The context of a request with these values of `traceparent`, of which there has to be one, and of `tracestate`.
    pub fn of_headers<'a>(
        parents: impl IntoIterator<Item = &'a [u8]>,
        states: impl IntoIterator<Item = &'a [u8]>,
    ) -> Option<Self> {
        let mut parents = parents.into_iter();
        let parent = parents.next()?;
        if parents.next().is_some() {
            return None;
        }
        Some(Self { state: state_of(states).map(Arc::from), ..Self::of_parent(parent)? })
    }

    /// The context of a `traceparent`. Of a version after 00 the members of 00 are read, and nothing else.
    fn of_parent(text: &[u8]) -> Option<Self> {
        let (known, rest) = text.split_at_checked(LENGTH)?;
        let known = std::str::from_utf8(known).ok()?;
        let mut parts = known.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let version = u8::try_from(hex(version, 2)?).ok()?;
        let ends = rest.is_empty() || (version > 0 && rest.first() == Some(&b'-'));
        if version == FORBIDDEN || parts.next().is_some() || !ends {
            return None;
        }
        let (trace, span) = (TraceId::new(hex(trace, 32)?)?, SpanId::new(u64::try_from(hex(span, 16)?).ok()?)?);
        let flags = u8::try_from(hex(flags, 2)?).ok()?;
        let known_flags = if version == 0 { SAMPLED | RANDOM } else { SAMPLED };
        Some(Self { trace, span, flags: flags & known_flags, state: None })
    }

    /// Returns true if the caller may have recorded its part of the trace.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The context of what a span of this trace sends.
    #[must_use]
    pub fn with_span(&self, span: SpanId) -> Self {
        Self { span, ..self.clone() }
    }

    /// Value of `traceparent`.
    #[must_use]
    pub fn traceparent(&self) -> String {
        format!("00-{}-{}-{:02x}", self.trace, self.span, self.flags)
    }

    /// Value of `tracestate`.
    #[must_use]
    pub fn tracestate(&self) -> Option<&str> {
        self.state.as_deref()
    }
}

/// The number that so many lower-case hexadecimal digits write.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_hex = text.len() == digits && text.bytes().all(is_digit);
    if is_hex { u128::from_str_radix(text, 16).ok() } else { None }
}

/// The members of all `tracestate` headers in their order; `None`: there are none, or they are not valid.
fn state_of<'a>(headers: impl IntoIterator<Item = &'a [u8]>) -> Option<String> {
    let mut members: Vec<&str> = Vec::new();
    for header in headers {
        for member in std::str::from_utf8(header).ok()?.split(',') {
            let member = member.trim_matches([' ', '\t']);
            if member.is_empty() {
                continue;
            }
            let (key, value) = member.split_once('=')?;
            if !is_key(key) || !is_value(value) || members.len() == MOST_MEMBERS {
                return None;
            }
            let same = |other: &&str| other.split_once('=').is_some_and(|(other, _)| other == key);
            if members.iter().any(same) {
                return None;
            }
            members.push(member);
        }
    }
    let bytes = |members: &[&str]| members.iter().map(|member| member.len() + 1).sum::<usize>().saturating_sub(1);
    if bytes(&members) > LONGEST_STATE {
        members.retain(|member| member.len() <= LONG_MEMBER);
    }
    while bytes(&members) > LONGEST_STATE {
        members.pop();
    }
    (!members.is_empty()).then(|| members.join(","))
}

fn is_key(key: &str) -> bool {
    let is_part = |part: &str, longest: usize, may_begin: fn(&u8) -> bool| {
        let allowed =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-' | b'*' | b'/');
        part.len() <= longest && part.as_bytes().first().is_some_and(may_begin) && part.bytes().all(allowed)
    };
    match key.split_once('@') {
        None => is_part(key, LONGEST_PART, u8::is_ascii_lowercase),
        Some((tenant, system)) => {
            let (longest_tenant, longest_system) = LONGEST_TENANT;
            is_part(tenant, longest_tenant, |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
                && is_part(system, longest_system, u8::is_ascii_lowercase)
        }
    }
}

/// Printable characters but `,` and `=`; spaces at the end were trimmed.
fn is_value(value: &str) -> bool {
    let allowed = |byte: u8| (b' '..=b'~').contains(&byte) && !matches!(byte, b',' | b'=');
    (1..=LONGEST_PART).contains(&value.len()) && value.bytes().all(allowed)
}

#[cfg(test)]
#[path = "context_tests.rs"]
mod tests;
