//! Text generation, independent of the API that a client uses and of the engine that generates.
//!
//! ```text
//!  client ──▶ codec of its API ──▶ GenerationRequest ──▶ template, engine
//!  client ◀── ResponseEncoder  ◀── Delta, Finish     ◀── tool parser ◀── OutputGuard ◀── pieces of the engine
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | [`request`] | a request of any API: prompts, sampling, output format |
//! | [`message`] | messages of a conversation and the tools that are offered |
//! | [`piece`] | pieces of text as an engine sends them, with their tokens |
//! | [`delta`] | parts of an answer for the client: text, reasoning, tool calls |
//! | [`finish`] | end of a choice: reason and usage |
//! | [`guard`] | rules kept for every engine: stop strings, whole characters, token limit, one end |
//! | [`encoder`] | what the codec of an API renders |
//! | [`completion`] | a whole answer, collected from deltas |
//! | `size` | memory of a request |
//! | [`values`] | bound of the JSON values that a client may send |
//! | [`capability`] | parameters that an engine honours |
#![forbid(unsafe_code)]

pub mod capability;
pub mod completion;
pub mod delta;
pub mod encoder;
pub mod finish;
pub mod guard;
pub mod message;
pub mod piece;
pub mod request;
mod size;
pub mod values;

pub use capability::{Capabilities, Capability};
pub use completion::{Choice, Completion};
pub use delta::Delta;
pub use encoder::ResponseEncoder;
pub use finish::{Finish, FinishReason, Usage};
pub use guard::{Characters, GuardLimits, OutputGuard, StopStrings};
pub use message::{Content, Message, Part, Role, Tool, ToolCall, ToolChoice};
pub use omni_request_error::{InvalidCode, InvalidRequest};
pub use piece::{Alternative, Piece, TokenInfo};
pub use request::{Chat, GenerationRequest, Prompt, ResponseFormat, Sampling, TemplateOptions};
pub use values::check_values;
