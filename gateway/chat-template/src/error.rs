//! Errors of templates, by whose fault they are.

use omni_generation::InvalidRequest;
use std::io;

/// Template that cannot be used: the author's fault.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The model has no template.
    #[error("there is no chat template: neither chat_template.jinja nor `chat_template` in tokenizer_config.json")]
    Missing,
    /// The tokenizer's configuration is no JSON object, or its template has another form.
    #[error("tokenizer_config.json: {0}")]
    Configuration(String),
    /// The template has no text.
    #[error("the chat template is empty")]
    Empty,
    /// The source is too long.
    #[error("the chat template is longer than {limit} bytes")]
    TooLarge {
        /// Longest source, in bytes.
        limit: usize,
    },
    /// The source cannot be compiled.
    #[error("{}", placed(*line, message))]
    Template {
        /// Cause.
        message: String,
        /// Line, from 1; 0 if it is not known.
        line: usize,
    },
    /// The compiler's thread could not be started.
    #[error("no thread for the compiler of chat templates")]
    Thread(#[source] io::Error),
}

/// Conversation that was not rendered.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// The template refuses the conversation by `raise_exception`: the client's fault, and its text is for the client.
    #[error("{message}")]
    Refused {
        /// Text of the exception.
        message: String,
        /// Line of the template, from 1; 0 if it is not known.
        line: usize,
    },
    /// The request cannot be rendered by this template: the client's fault.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// Error in the template: the author's fault.
    #[error("{}", placed(*line, message))]
    Template {
        /// Cause.
        message: String,
        /// Line, from 1; 0 if it is not known.
        line: usize,
    },
    /// The render took more fuel than its input may take: a loop without end, or a text that grows without end. The author's
    /// fault.
    #[error("the chat template takes more than {fuel} units of work for this conversation")]
    OutOfFuel {
        /// Fuel that it had.
        fuel: u64,
    },
    /// The prompt is too long for its input. The author's fault.
    #[error("the chat template's prompt is longer than {limit} bytes")]
    TooLong {
        /// Longest prompt, in bytes.
        limit: usize,
    },
}

/// Message with the line of the template, if that is known.
fn placed(line: usize, message: &str) -> String {
    match line {
        0 => format!("chat template: {message}"),
        line => format!("line {line} of the chat template: {message}"),
    }
}
