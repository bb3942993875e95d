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

/// The route of a request; `None`: the path is none of this API.
#[must_use]
pub fn route(method: &Method, path: &str) -> Option<Result<Route, Failure>> {
    let route = below_account(path).strip_prefix("/v1/")?;
    let (route, allowed) = match route {
        "models" => (Ok(Route::Models), Method::GET),
        "chat/completions" => (Ok(Route::ChatCompletions), Method::POST),
        "completions" => (Ok(Route::Completions), Method::POST),
        "embeddings" => (Ok(Route::Embeddings), Method::POST),
        "responses" => (Ok(Route::Responses), Method::POST),
        "rerank" => (Ok(Route::Rerank), Method::POST),
        "audio/transcriptions" => (Ok(Route::Transcriptions), Method::POST),
        "audio/translations" => (Ok(Route::Translations), Method::POST),
        "audio/speech" => (Ok(Route::Speech), Method::POST),
        "images/generations" => (Ok(Route::ImageGenerations), Method::POST),
        other => {
            let name = other.strip_prefix("models/")?;
            (model_name(name).map(Route::Model).ok_or(Failure::NoSuchModel), Method::GET)
        }
    };
    if *method != allowed {
        let allowed = if allowed == Method::GET { "GET" } else { "POST" };
        return Some(Err(Failure::MethodNotAllowed { allowed }));
    }
    Some(route)
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
