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
    /// Files and batches.
    Jobs(JobsRoute),
}

/// A route of files or batches. Identifiers are as clients send them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobsRoute {
    /// List of files.
    Files,
    /// Upload of a file.
    Upload,
    /// A single file.
    File(String),
    /// Deletion of a file.
    DeleteFile(String),
    /// Content of a file.
    Content(String),
    /// List of batches.
    Batches,
    /// Creation of a batch.
    Create,
    /// A single batch.
    Batch(String),
    /// Cancellation of a batch.
    Cancel(String),
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
    ("GET", "/files", Route::Jobs(JobsRoute::Files)),
    ("POST", "/files", Route::Jobs(JobsRoute::Upload)),
    ("GET", "/batches", Route::Jobs(JobsRoute::Batches)),
    ("POST", "/batches", Route::Jobs(JobsRoute::Create)),
];

/// The route of a request; `None`: the path is none of this API.
#[must_use]
pub fn route(method: &Method, path: &str) -> Option<Result<Route, Failure>> {
    let path = below_account(path).strip_prefix("/v1")?;
    let fixed: Vec<_> = FIXED.iter().filter(|(_, fixed, _)| *fixed == path).collect();
    let (allowed, route) = match fixed.as_slice() {
        [(first, ..), others @ ..] => match fixed.iter().find(|(allowed, ..)| *allowed == method.as_str()) {
            Some((allowed, _, route)) => (*allowed, Ok(route.clone())),
            None => (if others.is_empty() { *first } else { "GET, POST" }, Ok(Route::Models)), // another method
        },
        [] => match path.strip_prefix("/models/") {
            Some(name) => ("GET", model_name(name).map(Route::Model).ok_or(Failure::NoSuchModel)),
            None => return jobs_route(method, path).map(|route| route.map(Route::Jobs)),
        },
    };
    Some(if method.as_str() == allowed { route } else { Err(Failure::MethodNotAllowed { allowed }) })
}

/// The route of a single file or batch.
fn jobs_route(method: &Method, path: &str) -> Option<Result<JobsRoute, Failure>> {
    let of_files = path.strip_prefix("/files/");
    let rest = of_files.or_else(|| path.strip_prefix("/batches/"))?;
    let (id, action) = rest.split_once('/').map_or((rest, None), |(id, action)| (id, Some(action)));
    if id.is_empty() {
        return None;
    }
    let (allowed, route): (_, fn(String) -> JobsRoute) = match (of_files.is_some(), action, method.as_str()) {
        (true, None, "DELETE") => ("DELETE", JobsRoute::DeleteFile),
        (true, None, "GET") => ("GET", JobsRoute::File),
        (true, None, _) => ("GET, DELETE", JobsRoute::File),
        (true, Some("content"), _) => ("GET", JobsRoute::Content),
        (false, None, _) => ("GET", JobsRoute::Batch),
        (false, Some("cancel"), _) => ("POST", JobsRoute::Cancel),
        (_, Some(_), _) => return None,
    };
    Some(if method.as_str() == allowed { Ok(route(id.to_owned())) } else { Err(Failure::MethodNotAllowed { allowed }) })
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
            ("GET", "/v1/files", "Jobs(Files)"),
            ("POST", "/v1/files", "Jobs(Upload)"),
            ("PUT", "/v1/files", "MethodNotAllowed { allowed: \"GET, POST\" }"),
            ("GET", "/v1/files/file-1", "Jobs(File(\"file-1\"))"),
            ("DELETE", "/v1/files/file-1", "Jobs(DeleteFile(\"file-1\"))"),
            ("POST", "/v1/files/file-1", "MethodNotAllowed { allowed: \"GET, DELETE\" }"),
            ("GET", "/v1/files/file-1/content", "Jobs(Content(\"file-1\"))"),
            ("GET", "/v1/files/file-1/other", "none"),
            ("GET", "/v1/files/", "none"),
            ("POST", "/v1/batches", "Jobs(Create)"),
            ("GET", "/client/v4/accounts/x/ai/v1/batches", "Jobs(Batches)"),
            ("GET", "/v1/batches/batch_1", "Jobs(Batch(\"batch_1\"))"),
            ("POST", "/v1/batches/batch_1/cancel", "Jobs(Cancel(\"batch_1\"))"),
            ("GET", "/v1/batches/batch_1/cancel", "MethodNotAllowed { allowed: \"POST\" }"),
            ("POST", "/v1/messages", "none"),
            ("POST", "/ai/run/cowsay", "none"),
            ("POST", "/client/v4/accounts//ai/v1/embeddings", "none"),
            ("GET", "/", "none"),
        ] {
            assert_eq!(of(method, path), expected, "{method} {path}");
        }
    }
}
