//! Parts of an answer, in the order in which a client gets them.

/// Next part of a choice. Invariant: parts are final; none is taken back by a later one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    /// Text of the answer.
    Content(String),
    /// Text of the reasoning before it.
    Reasoning(String),
    /// Beginning of a tool call. Calls of a choice are numbered from 0 and do not overlap.
    CallStart {
        /// Number of the call.
        call: usize,
        /// Id, unique in the conversation.
        id: String,
        /// Function.
        name: String,
    },
    /// Next part of the arguments of the call that was begun last: JSON text.
    CallArguments {
        /// Number of the call.
        call: usize,
        /// Text; all parts together are the arguments, `{}` when there are none.
        text: String,
    },
}
