//! Routes of the Workers AI API.

use hyper::Method;
use omni_config::name::ModelName;
use omni_config::url_path::{below_account, model_name};
use omni_request_error::Failure;

/// The model of a request, by method and path.
///
/// # Errors
/// No such route, another method, or no valid name of a model.
pub fn model_of(method: &Method, path: &str) -> Result<ModelName, Failure> {
    let tail = run_route(path).ok_or(Failure::NoSuchRoute)?;
    if method != Method::POST {
        return Err(Failure::MethodNotAllowed { allowed: "POST" });
    }
    model_name(tail).ok_or(Failure::NoSuchModel)
}

/// The rest of a path behind `/ai/run/` or `/client/v4/accounts/{account}/ai/run/`, still encoded.
fn run_route(path: &str) -> Option<&str> {
    let route = below_account(path);
    // Without an account the prefix `/ai` is a part of the route.
    let route = if route.len() == path.len() { route.strip_prefix("/ai")? } else { route };
    route.strip_prefix("/run/").filter(|tail| !tail.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_split_before_they_are_decoded() {
        let name = |path: &str| run_route(path).and_then(model_name).map(|name| name.to_string());
        for (path, expected) in [
            ("/ai/run/cowsay", Some("cowsay")),
            ("/ai/run/@cf/meta/llama", Some("@cf/meta/llama")),
            ("/ai/run/@cf%2Fmeta%2Fllama", Some("@cf/meta/llama")),
            ("/ai/run/%40cf%2fmeta/llama", Some("@cf/meta/llama")),
            ("/client/v4/accounts/x/ai/run/@cf%2Fmeta%2Fllama", Some("@cf/meta/llama")),
            ("/client/v4/accounts//ai/run/cowsay", None),
            ("/client/v4/accounts/x/ai/run/", None),
            ("/ai/run/..%2Fx", None),
            ("/ai/run/../x", None),
            ("/ai/run/a%252Fb", None),
            ("/ai/run/a%2", None),
            ("/ai/run/a%zz", None),
            ("/ai/run/a%00", None),
            ("/ai/run/%ff", None),
            ("/ai/running", None),
            ("/", None),
        ] {
            assert_eq!(name(path).as_deref(), expected, "{path}");
        }
    }
}
