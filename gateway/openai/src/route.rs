//! Routes of the OpenAI API, at the root and below the prefix of the Workers AI API.

use hyper::Method;
use omni_config::name::ModelName;
use omni_config::url_path::{below_account, model_name};
use omni_request_error::Failure;

/// A route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// List of models.
    Models,
    /// A single model.
    Model(ModelName),
    /// Chat completion.
    ChatCompletions,
    /// Completion of a text.
    Completions,
    /// Embeddings.
    Embeddings,
    /// Response.
    Responses,
    /// Ranking of documents.
    Rerank,
    /// Text of a recording.
    Transcriptions,
    /// English text of a recording.
    Translations,
    /// Sound of a text.
    Speech,
    /// Images for a text.
    ImageGenerations,
}

/// Routes with a fixed path, which follows `/v1`, and a method.
pub(crate) const FIXED: &[(&str, &str, Route)] = &[
    ("GET", "/models", Route::Models),
    ("POST", "/chat/completions", Route::ChatCompletions),
    ("POST", "/completions", Route::Completions),
    ("POST", "/embeddings", Route::Embeddings),
    ("POST", "/responses", Route::Responses),
    ("POST", "/rerank", Route::Rerank),
    ("POST", "/audio/transcriptions", Route::Transcriptions),
    ("POST", "/audio/translations", Route::Translations),
    ("POST", "/audio/speech", Route::Speech),
    ("POST", "/images/generations", Route::ImageGenerations),
];

/// The route of a request; `None`: the path is none of this API.
#[must_use]
pub fn route(method: &Method, path: &str) -> Option<Result<Route, Failure>> {
    let path = below_account(path).strip_prefix("/v1")?;
    let fixed = FIXED.iter().find(|(_, fixed, _)| *fixed == path);
    let (allowed, route) = match fixed {
        Some((allowed, _, route)) => (*allowed, Ok(route.clone())),
        None => {
            let name = path.strip_prefix("/models/")?;
            ("GET", model_name(name).map(Route::Model).ok_or(Failure::NoSuchModel))
        }
    };
    Some(if method.as_str() == allowed { route } else { Err(Failure::MethodNotAllowed { allowed }) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(method: &str, path: &str) -> String {
        match route(&method.parse().unwrap(), path) {
            None => "none".into(),
            Some(Ok(Route::Model(name))) => format!("model {name}"),
            Some(Ok(route)) => format!("{route:?}"),
            Some(Err(failure)) => format!("{failure:?}"),
        }
    }

    #[test]
    fn the_table_of_routes() {
        for (method, path, expected) in [
            ("GET", "/v1/models", "Models"),
            ("GET", "/v1/models/gpt", "model gpt"),
            ("GET", "/v1/models/@cf/meta/llama", "model @cf/meta/llama"),
            ("GET", "/v1/models/@cf%2Fmeta%2Fllama", "model @cf/meta/llama"),
            ("GET", "/v1/models/..%2Fx", "NoSuchModel"),
            ("GET", "/v1/models/", "NoSuchModel"),
            ("DELETE", "/v1/models/gpt", "MethodNotAllowed { allowed: \"GET\" }"),
            ("POST", "/v1/chat/completions", "ChatCompletions"),
            ("POST", "/client/v4/accounts/x/ai/v1/chat/completions", "ChatCompletions"),
            ("GET", "/client/v4/accounts/x/ai/v1/models", "Models"),
            ("GET", "/v1/chat/completions", "MethodNotAllowed { allowed: \"POST\" }"),
            ("GET", "/v1/chat/completions/", "none"),
            ("POST", "/v1/completions", "Completions"),
            ("POST", "/v1/embeddings", "Embeddings"),
            ("POST", "/v1/responses", "Responses"),
            ("GET", "/v1/responses/resp_1", "none"),
            ("POST", "/v1/rerank", "Rerank"),
            ("POST", "/v1/audio/transcriptions", "Transcriptions"),
            ("POST", "/v1/audio/translations", "Translations"),
            ("POST", "/v1/audio/speech", "Speech"),
            ("POST", "/v1/images/generations", "ImageGenerations"),
            ("POST", "/v1/messages", "none"),
            ("POST", "/ai/run/cowsay", "none"),
            ("POST", "/client/v4/accounts//ai/v1/embeddings", "none"),
            ("GET", "/", "none"),
        ] {
            assert_eq!(of(method, path), expected, "{method} {path}");
        }
    }
}
