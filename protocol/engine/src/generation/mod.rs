//! Text generation: the body of a request and the chunks of its answer.
//!
//! A request whose head has [`RequestKind::TextGeneration`] has a [`GenerationInput`] as its body, JSON. The answer is a
//! `Stream` frame with [`flags::EVENT`], its chunks, then `End`; a short answer comes in the same form. Flags of a chunk:
//!
//! | flags | payload |
//! | --- | --- |
//! | [`flags::TEXT`] | text |
//! | [`flags::BYTES`] | bytes of text; a character may be split over chunks |
//! | [`flags::EVENT`] | one [`GenerationEvent`], JSON |
//!
//! Invariants of an engine of ours: at most one `finish`, and nothing after it; tokens of the prompt only where the request
//! asks for them, and nothing before them.
//!
//! [`RequestKind::TextGeneration`]: crate::frame::RequestKind::TextGeneration
//! [`flags::EVENT`]: crate::frame::flags::EVENT
//! [`flags::TEXT`]: crate::frame::flags::TEXT
//! [`flags::BYTES`]: crate::frame::flags::BYTES

mod event;
mod input;
mod received;

pub use event::{
    Alternative, FinishEvent, FinishReason, GenerationEvent, InvalidEvent, MAX_ALTERNATIVES, MAX_NAME, TokenEvent,
    ToolCallEvent, UsageReport,
};
pub use input::{GenerationInput, ResponseFormatInput, SamplingInput, ToolChoiceInput};
pub use received::{
    FormatKind, ReceivedFormat, ReceivedFunction, ReceivedGeneration, ReceivedSampling, ReceivedTool,
    ReceivedToolChoice,
};
