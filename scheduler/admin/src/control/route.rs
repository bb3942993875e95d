//! Routes of the control API, with the method and the role that each requires.

use hyper::Method;
use omni_auth::Role;

/// Route of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route<'a> {
    /// OpenAPI document.
    OpenApi,
    /// State of the node.
    Node,
    /// Takeover by a successor.
    Upgrade,
    /// List of models.
    Models,
    /// Resource use of running models.
    Top,
    /// GPUs.
    Gpus,
    /// Endpoint of a model, whose name is still encoded.
    Model(&'a str, ModelEndpoint),
}

/// Endpoint of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ModelEndpoint {
    /// State.
    State,
    /// Manifest in force.
    Manifest,
    /// Log.
    Logs,
    /// Stacks of its threads.
    Stack,
    /// Versions that have served.
    History,
    /// Reason for the number of instances.
    Explain,
    /// Request to the model.
    Run,
    /// Command to start the model.
    Start,
    /// Command to stop the model.
    Stop,
    /// Command to restart the model.
    Restart,
    /// Command to go back to an earlier version.
    RollBack,
}

impl<'a> Route<'a> {
    /// Parses the path of a request; `None`: there is no such route.
    pub(super) fn parse(path: &'a str) -> Option<Self> {
        let segments: Vec<&str> = path.split('/').skip(1).collect();
        Some(match *segments.as_slice() {
            ["openapi.json"] => Self::OpenApi,
            ["v1", "node"] => Self::Node,
            ["v1", "node", "upgrade"] => Self::Upgrade,
            ["v1", "models"] => Self::Models,
            ["v1", "top"] => Self::Top,
            ["v1", "gpus"] => Self::Gpus,
            ["v1", "models", name] => Self::Model(name, ModelEndpoint::State),
            ["v1", "models", name, "manifest"] => Self::Model(name, ModelEndpoint::Manifest),
            ["v1", "models", name, "logs"] => Self::Model(name, ModelEndpoint::Logs),
            ["v1", "models", name, "stack"] => Self::Model(name, ModelEndpoint::Stack),
            ["v1", "models", name, "history"] => Self::Model(name, ModelEndpoint::History),
            ["v1", "models", name, "explain"] => Self::Model(name, ModelEndpoint::Explain),
            ["v1", "models", name, "run"] => Self::Model(name, ModelEndpoint::Run),
            ["v1", "models", name, "start"] => Self::Model(name, ModelEndpoint::Start),
            ["v1", "models", name, "stop"] => Self::Model(name, ModelEndpoint::Stop),
            ["v1", "models", name, "restart"] => Self::Model(name, ModelEndpoint::Restart),
            ["v1", "models", name, "rollback"] => Self::Model(name, ModelEndpoint::RollBack),
            _ => return None,
        })
    }

    /// Method and role that the route requires.
    pub(super) fn requires(self) -> (Method, Role) {
        match self {
            Self::OpenApi | Self::Node | Self::Models | Self::Top | Self::Gpus => (Method::GET, Role::Read),
            Self::Upgrade => (Method::POST, Role::Write),
            Self::Model(_, endpoint) => match endpoint {
                ModelEndpoint::State
                | ModelEndpoint::Manifest
                | ModelEndpoint::Logs
                | ModelEndpoint::History
                | ModelEndpoint::Explain => (Method::GET, Role::Read),
                // A request starts models, and bypasses the tokens of the data listener.
                ModelEndpoint::Run
                | ModelEndpoint::Stack
                | ModelEndpoint::Start
                | ModelEndpoint::Stop
                | ModelEndpoint::Restart
                | ModelEndpoint::RollBack => (Method::POST, Role::Write),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openapi::OPENAPI;
    use serde_json::Value;

    /// Compares paths and methods with the document. Readers may use exactly the `GET` routes.
    #[test]
    fn routes_match_the_document() {
        let document: Value = serde_json::from_str(OPENAPI).unwrap();
        let paths = document["paths"].as_object().unwrap();
        assert_eq!(paths.len(), 17);
        for (path, methods) in paths {
            let (method, role) = Route::parse(path).unwrap_or_else(|| panic!("{path}")).requires();
            let documented: Vec<_> = methods.as_object().unwrap().keys().filter(|key| *key != "parameters").collect();
            assert_eq!(documented, [&method.as_str().to_ascii_lowercase()], "{path}");
            assert_eq!(role == Role::Read, method == Method::GET, "{path}");
        }
    }

    #[test]
    fn a_model_name_is_one_segment() {
        assert_eq!(Route::parse("/v1/models/@cf%2Fx/stop"), Some(Route::Model("@cf%2Fx", ModelEndpoint::Stop)));
        for none in ["", "/", "/v1", "/v1/models/a/b/stop", "/v1/node/upgrade/", "//v1/node", "/v1/models/a/kill"] {
            assert_eq!(Route::parse(none), None, "{none}");
        }
    }
}
