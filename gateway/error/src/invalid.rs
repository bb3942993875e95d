//! Requests that are read and cannot be honoured as they are.

/// Class of an invalid request, as clients of the OpenAI API know it by its code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InvalidCode {
    /// JSON of another type than the parameter has.
    Type,
    /// Value out of bounds, or not among those that there are.
    Value,
    /// Parameter that is required and absent.
    Missing,
    /// Parameter that the API does not have.
    Unknown,
    /// Parameter or value of the API that cannot be honoured here.
    Unsupported,
    /// Prompt and answer longer than the model's context.
    ContextLength,
    /// JSON Schema that is none.
    Schema,
    /// Share of the client that is used up: it has to give something up first.
    Quota,
}

impl InvalidCode {
    /// Code of the class in the OpenAI API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Type => "invalid_type",
            Self::Value => "invalid_value",
            Self::Missing => "missing_required_parameter",
            Self::Unknown => "unknown_parameter",
            Self::Unsupported => "unsupported_parameter",
            Self::ContextLength => "context_length_exceeded",
            Self::Schema => "invalid_schema",
            Self::Quota => "quota_exceeded",
        }
    }
}

/// A request that cannot be honoured as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidRequest {
    /// Message for the client: what is wrong, and what to send instead.
    pub message: String,
    /// Path of the parameter, such as `messages[2].content`.
    pub parameter: Option<String>,
    /// Class.
    pub code: InvalidCode,
}

impl InvalidRequest {
    /// The refusal of a parameter's value.
    #[must_use]
    pub fn new(parameter: impl Into<String>, message: impl Into<String>) -> Self {
        Self { message: message.into(), parameter: Some(parameter.into()), code: InvalidCode::Value }
    }

    /// The refusal of a parameter that cannot be honoured.
    #[must_use]
    pub fn unsupported(parameter: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(parameter, message).with_code(InvalidCode::Unsupported)
    }

    /// The refusal of a request without a required parameter.
    #[must_use]
    pub fn missing(parameter: &str) -> Self {
        Self::new(parameter, format!("`{parameter}` is missing")).with_code(InvalidCode::Missing)
    }

    /// The same refusal, of another class.
    #[must_use]
    pub fn with_code(mut self, code: InvalidCode) -> Self {
        self.code = code;
        self
    }
}
