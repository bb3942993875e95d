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
    /// Usage by model and token.
    Usage,
    /// Batches.
    Jobs,
    /// Single batch.
    Job(&'a str),
    /// Cancellation of a batch.
    CancelJob(&'a str),
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
    /// Command to prepare the model.
    Pull,
    /// Command to start the model.
    Start,
    /// Command to stop the model.
    Stop,
    /// Command to restart the model.
    Restart,
    /// Command to go back to an earlier version.
    RollBack,
}

/// Routes without a name of a model.
const FIXED: &[(&str, Route<'static>)] = &[
    ("/openapi.json", Route::OpenApi),
    ("/v1/node", Route::Node),
    ("/v1/node/upgrade", Route::Upgrade),
    ("/v1/models", Route::Models),
    ("/v1/top", Route::Top),
    ("/v1/gpus", Route::Gpus),
    ("/v1/usage", Route::Usage),
    ("/v1/jobs", Route::Jobs),
];
/// Ends of the routes that begin with `/v1/models/` and a name.
const ENDPOINTS: &[(&str, ModelEndpoint)] = &[
    ("", ModelEndpoint::State),
    ("/manifest", ModelEndpoint::Manifest),
    ("/logs", ModelEndpoint::Logs),
    ("/stack", ModelEndpoint::Stack),
    ("/history", ModelEndpoint::History),
    ("/explain", ModelEndpoint::Explain),
    ("/run", ModelEndpoint::Run),
    ("/pull", ModelEndpoint::Pull),
    ("/start", ModelEndpoint::Start),
    ("/stop", ModelEndpoint::Stop),
    ("/restart", ModelEndpoint::Restart),
    ("/rollback", ModelEndpoint::RollBack),
];

impl<'a> Route<'a> {
    /// Parses the path of a request; `None`: there is no such route.
    pub(super) fn parse(path: &'a str) -> Option<Self> {
        if let Some((_, route)) = FIXED.iter().find(|(known, _)| *known == path) {
            return Some(*route);
        }
        if let Some(id) = path.strip_prefix("/v1/jobs/") {
            let cancelled = id.strip_suffix("/cancel");
            let id = cancelled.unwrap_or(id);
            let is_id = !id.is_empty() && !id.contains('/');
            return is_id.then_some(if cancelled.is_some() { Self::CancelJob(id) } else { Self::Job(id) });
        }
        let rest = path.strip_prefix("/v1/models/")?;
        let (name, endpoint) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (_, endpoint) = ENDPOINTS.iter().find(|(known, _)| *known == endpoint)?;
        Some(Self::Model(name, *endpoint))
    }

    /// Returns whether the node's page may use the route. Its requests to models go through the APIs with their tokens.
    pub(super) fn is_for_page(self) -> bool {
        match self {
            Self::OpenApi
            | Self::Node
            | Self::Upgrade
            | Self::Models
            | Self::Top
            | Self::Gpus
            | Self::Usage
            | Self::Jobs
            | Self::Job(_) => false,
            Self::CancelJob(_) => true,
            Self::Model(_, endpoint) => match endpoint {
                ModelEndpoint::State
                | ModelEndpoint::Manifest
                | ModelEndpoint::Logs
                | ModelEndpoint::History
                | ModelEndpoint::Explain
                | ModelEndpoint::Pull
                | ModelEndpoint::Start
                | ModelEndpoint::Stop
                | ModelEndpoint::Restart
                | ModelEndpoint::RollBack => true,
                ModelEndpoint::Stack | ModelEndpoint::Run => false,
            },
        }
    }

    /// Method and role that the route requires.
    pub(super) fn requires(self) -> (Method, Role) {
        match self {
            Self::OpenApi
            | Self::Node
            | Self::Models
            | Self::Top
            | Self::Gpus
            | Self::Usage
            | Self::Jobs
            | Self::Job(_) => (Method::GET, Role::Read),
            Self::Upgrade | Self::CancelJob(_) => (Method::POST, Role::Write),
            Self::Model(_, endpoint) => match endpoint {
                ModelEndpoint::State
                | ModelEndpoint::Manifest
                | ModelEndpoint::Logs
                | ModelEndpoint::History
                | ModelEndpoint::Explain => (Method::GET, Role::Read),
                // A request starts models, and bypasses the tokens of the data listener.
                ModelEndpoint::Run
                | ModelEndpoint::Stack
                | ModelEndpoint::Pull
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
    use crate::openapi::control::{API, RUN};
    use std::collections::BTreeSet;

    /// Compares paths and methods. Readers may use exactly the `GET` routes.
    #[test]
    fn every_route_has_an_operation() {
        let operations = API.operations.iter().chain(RUN.operations);
        let documented: BTreeSet<_> =
            operations.map(|operation| (operation.path().to_owned(), operation.method())).collect();
        let fixed = FIXED.iter().map(|(path, _)| (*path).to_owned()).filter(|path| path != "/openapi.json");
        let of_jobs = ["", "/cancel"].map(|end| format!("/v1/jobs/{{job}}{end}"));
        let of_models = ENDPOINTS.iter().map(|(end, _)| format!("/v1/models/{{model}}{end}"));
        let route = |path: String| {
            let (method, role) = Route::parse(&path).unwrap_or_else(|| panic!("{path}")).requires();
            assert_eq!(role == Role::Read, method == Method::GET, "{path}");
            (path, method.to_string())
        };
        assert_eq!(documented, fixed.chain(of_jobs).chain(of_models).map(route).collect());
    }

    #[test]
    fn a_model_name_is_one_segment() {
        assert_eq!(Route::parse("/v1/models/@cf%2Fx/stop"), Some(Route::Model("@cf%2Fx", ModelEndpoint::Stop)));
        for none in [
            "",
            "/",
            "/v1",
            "/v1/models/a/b/stop",
            "/v1/node/upgrade/",
            "//v1/node",
            "/v1/models/a/kill",
            "/v1/jobs/",
            "/v1/jobs/a/b",
        ] {
            assert_eq!(Route::parse(none), None, "{none}");
        }
    }
}
