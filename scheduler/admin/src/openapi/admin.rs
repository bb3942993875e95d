//! Operations of the admin listener.

use crate::capacity::Capacity;
use omni_codec::openapi::{Api, Content, Operation, Server, Variable};

/// Media type of metrics.
pub(crate) const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Operations of the admin listener, but for that of the OpenAPI document.
pub(crate) const API: Api = Api {
    name: "Admin listener",
    servers: &[SERVER],
    failure: &[Content::of::<String>("text/plain")],
    operations: &[
        Operation::get("/livez", "Liveness of the scheduler", &[Content::of::<String>("text/plain")]),
        Operation::get("/readyz", "Readiness for requests", &[Content::of::<String>("text/plain")]),
        Operation::get("/metrics", "Metrics", &[Content::of::<String>(OPEN_METRICS)]),
        Operation::get("/capacity", "Room for requests, by model", &[Content::json::<Capacity>()]),
    ],
};
/// The admin listener.
pub(crate) const SERVER: Server = Server {
    url: "{admin}",
    description: "Admin listener of a node",
    variables: &[Variable {
        name: "admin",
        default: "http://127.0.0.1:9090",
        description: "Address of the admin listener",
    }],
};
