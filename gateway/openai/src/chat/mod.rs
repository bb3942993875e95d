//! Chat completions: `/v1/chat/completions`.

mod answer;
mod content;
mod encoder;
mod format;
mod history;
mod logprobs;
mod message;
mod request;
mod tool;

pub use answer::ChatCompletion;
pub(crate) use answer::finish_reason;
pub use content::ContentPart;
pub(crate) use content::checked_url;
pub use encoder::ChatEncoder;
pub(crate) use format::named_format;
pub use format::{ResponseFormatForm, read_format};
pub use history::message_list;
pub(crate) use logprobs::{NO_LOGPROB, TokenLogprob};
pub use message::ChatMessage;
pub use request::{ChatRequest, UNSUPPORTED, chat_request, check_variables, read_messages};
pub use tool::{ToolChoiceForm, ToolDefinition, ToolForm, read_choice, read_tools};

#[cfg(test)]
mod tests;
