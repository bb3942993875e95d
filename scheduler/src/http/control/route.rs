//! The routes of the control API, and what each asks of its caller: the one place that says so.

use hyper::Method;
use omni_auth::Role;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route<'a> {
    /// The document of this API.
    OpenApi,
    /// The node itself.
    Node,
    /// A successor is to take over.
    Upgrade,
    /// All models.
    Models,
    /// What running models use.
    Top,
    /// The cards.
    Gpus,
    /// Something of a model, whose name is still encoded.
    Model(&'a str, Of),
}

/// Of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// How it is.
    State,
    /// The manifest in force.
    Manifest,
    /// What it writes.
    Logs,
    /// Where its threads are.
    Stack,
    /// Versions that served.
    History,
    /// Why it has so many instances.
    Explain,
    /// One request.
    Run,
    /// A person's word.
    Start,
    /// A person's word.
    Stop,
    /// A person's word.
    Restart,
    /// A person's word.
    RollBack,
}

impl<'a> Route<'a> {
    /// The route of a path.
    pub(super) fn of(path: &'a str) -> Option<Self> {
        let segments: Vec<&str> = path.split('/').skip(1).collect();
        Some(match *segments.as_slice() {
            ["openapi.json"] => Self::OpenApi,
            ["v1", "node"] => Self::Node,
            ["v1", "node", "upgrade"] => Self::Upgrade,
            ["v1", "models"] => Self::Models,
            ["v1", "top"] => Self::Top,
            ["v1", "gpus"] => Self::Gpus,
            ["v1", "models", name] => Self::Model(name, Of::State),
            ["v1", "models", name, "manifest"] => Self::Model(name, Of::Manifest),
            ["v1", "models", name, "logs"] => Self::Model(name, Of::Logs),
            ["v1", "models", name, "stack"] => Self::Model(name, Of::Stack),
            ["v1", "models", name, "history"] => Self::Model(name, Of::History),
            ["v1", "models", name, "explain"] => Self::Model(name, Of::Explain),
            ["v1", "models", name, "run"] => Self::Model(name, Of::Run),
            ["v1", "models", name, "start"] => Self::Model(name, Of::Start),
            ["v1", "models", name, "stop"] => Self::Model(name, Of::Stop),
            ["v1", "models", name, "restart"] => Self::Model(name, Of::Restart),
            ["v1", "models", name, "rollback"] => Self::Model(name, Of::RollBack),
            _ => return None,
        })
    }

    /// The method, and what a caller must be allowed.
    pub(super) fn needs(self) -> (Method, Role) {
        match self {
            Self::OpenApi | Self::Node | Self::Models | Self::Top | Self::Gpus => (Method::GET, Role::Read),
            Self::Upgrade => (Method::POST, Role::Write),
            Self::Model(_, of) => match of {
                Of::State | Of::Manifest | Of::Logs | Of::History | Of::Explain => (Method::GET, Role::Read),
                // A request starts models and passes by the tokens of the data listener.
                Of::Run | Of::Stack | Of::Start | Of::Stop | Of::Restart | Of::RollBack => (Method::POST, Role::Write),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openapi::OPENAPI;
    use serde_json::Value;

    /// Each route of the document is one, with that method; and what only looks is what may be got.
    #[test]
    fn routes_are_those_of_the_document() {
        let document: Value = serde_json::from_str(OPENAPI).unwrap();
        let paths = document["paths"].as_object().unwrap();
        assert_eq!(paths.len(), 17);
        for (path, methods) in paths {
            let (method, role) = Route::of(path).unwrap_or_else(|| panic!("{path}")).needs();
            let documented: Vec<_> = methods.as_object().unwrap().keys().filter(|key| *key != "parameters").collect();
            assert_eq!(documented, [&method.as_str().to_ascii_lowercase()], "{path}");
            assert_eq!(role == Role::Read, method == Method::GET, "{path}");
        }
    }

    #[test]
    fn a_name_is_one_segment() {
        assert_eq!(Route::of("/v1/models/@cf%2Fx/stop"), Some(Route::Model("@cf%2Fx", Of::Stop)));
        for none in ["", "/", "/v1", "/v1/models/a/b/stop", "/v1/node/upgrade/", "//v1/node", "/v1/models/a/kill"] {
            assert_eq!(Route::of(none), None, "{none}");
        }
    }
}
