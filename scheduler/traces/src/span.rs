//! Values of spans. Names and keys are fixed texts; values are names that the node knows, and numbers.

use crate::context::{SpanId, TraceId};
use std::borrow::Cow;

/// A span that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// The trace.
    pub trace: TraceId,
    /// The span.
    pub id: SpanId,
    /// The span that it is a part of; `None`: the first of its trace.
    pub parent: Option<SpanId>,
    /// Name.
    pub name: Cow<'static, str>,
    /// Kind.
    pub kind: SpanKind,
    /// Beginning and end, in nanoseconds since the Unix epoch.
    pub times: (u64, u64),
    /// Attributes.
    pub attributes: Vec<(&'static str, Value)>,
    /// The operation failed.
    pub is_error: bool,
}

/// Kind of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// Within the node.
    Internal,
    /// A request of a client.
    Server,
    /// A request to a model.
    Client,
}

/// Value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A name.
    Text(Cow<'static, str>),
    /// A list of one name.
    List(&'static str),
    /// A number.
    Number(u64),
}

impl Span {
    /// Adds an attribute.
    pub fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        self.attributes.push((key, value.into()));
    }

    /// Marks the span as failed, with the class of the error.
    pub fn fail(&mut self, class: impl Into<Cow<'static, str>>) {
        self.is_error = true;
        self.set(crate::names::ERROR_TYPE, Value::Text(class.into()));
    }
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}
