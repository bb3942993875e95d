//! Operations of the control API.

use omni_codec::openapi::{Api, Content, Operation, Parameter, Server, schema_of};
use omni_control_api::{
    Explain, Gpus, History, Job, Jobs, LogEntry, Model, Models, Node, Problem, Top, Upgrade, UsageSummary,
};
use serde_json::{Map, Value};

/// The control socket.
pub(crate) const SERVER: Server = Server {
    url: "http://localhost",
    description: "Control socket of a node, `<runtime-dir>/control.sock`; a model's name is one percent-encoded segment",
    variables: &[],
};
const NAME: &str = "Control API";

/// Operations whose failures are problem details.
pub(crate) const API: Api = Api {
    name: NAME,
    servers: &[SERVER],
    failure: &[Content::of::<Problem>("application/problem+json")],
    operations: OPERATIONS,
};
/// Requests to models, with the failures of the data listener too.
pub(crate) const RUN: Api = Api {
    name: NAME,
    servers: &[SERVER],
    failure: &[Content::of::<Problem>("application/problem+json"), Content::json::<Value>()],
    operations: &[Operation::post(
        "/v1/models/{model}/run",
        "As `/ai/run/{model}` of the data listener",
        ANY,
        &[Content::json::<Value>(), Content::EVENTS, Content::BYTES],
    )],
};

const ANY: &[Content] = &[Content::json::<Value>(), Content::BYTES];
const MODEL: &[Content] = &[Content::json::<Model>()];
const JOB: &[Content] = &[Content::json::<Job>()];
const LINES: &[Content] = &[Content::of::<LogEntry>("application/x-ndjson")];

const OPERATIONS: &[Operation] = &[
    Operation::get("/v1/node", "The node itself", &[Content::json::<Node>()]),
    Operation::post(
        "/v1/node/upgrade",
        "Have the program that is on disk take over the node",
        &[],
        &[Content::json::<Upgrade>()],
    ),
    Operation::get("/v1/models", "All models", &[Content::json::<Models>()]),
    Operation::get("/v1/top", "Use of every running instance", &[Content::json::<Top>()]),
    Operation::get("/v1/gpus", "GPUs, and whose memory is on them", &[Content::json::<Gpus>()]),
    Operation::get(
        "/v1/usage",
        "Usage by model and token, as far as its records are kept",
        &[Content::json::<UsageSummary>()],
    )
    .with_query(&[Parameter {
        name: "since",
        description: "Attempts that ended then or later, in milliseconds since 1970; all if absent",
        schema: schema_of::<u64>,
    }]),
    Operation::get("/v1/jobs", "The newest batches of all owners", &[Content::json::<Jobs>()]),
    Operation::get("/v1/jobs/{job}", "One batch", JOB),
    Operation::post("/v1/jobs/{job}/cancel", "Cancel a batch; its results so far are kept", &[], JOB),
    Operation::get("/v1/models/{model}", "One model", MODEL),
    Operation::get(
        "/v1/models/{model}/manifest",
        "The effective manifest, defaults filled in",
        &[Content::json::<Map<String, Value>>()],
    ),
    Operation::get("/v1/models/{model}/logs", "Lines that the model wrote, one entry a line", LINES).with_query(&[
        Parameter { name: "lines", description: "Number of the last lines; 100 if absent", schema: schema_of::<u32> },
        Parameter { name: "follow", description: "Further lines as they come", schema: schema_of::<bool> },
    ]),
    Operation::post(
        "/v1/models/{model}/stack",
        "Stacks of the threads of every instance, one entry a line",
        &[],
        LINES,
    ),
    Operation::get("/v1/models/{model}/history", "Versions that can be served again", &[Content::json::<History>()]),
    Operation::get(
        "/v1/models/{model}/explain",
        "Why the model has as many instances as it has",
        &[Content::json::<Explain>()],
    ),
    Operation::post(
        "/v1/models/{model}/pull",
        "Build the environment and fetch the weights, and start nothing",
        &[],
        MODEL,
    ),
    Operation::post("/v1/models/{model}/start", "Start now and stay startable", &[], MODEL),
    Operation::post("/v1/models/{model}/stop", "Drain, stop, and stay stopped until a start", &[], MODEL),
    Operation::post("/v1/models/{model}/restart", "New instances in place of those that run", &[], MODEL),
    Operation::post(
        "/v1/models/{model}/rollback",
        "Serve an earlier version again, until the directory changes",
        &[],
        MODEL,
    )
    .with_query(&[Parameter {
        name: "to",
        description: "First digits of a version in the history; the one before if absent",
        schema: schema_of::<String>,
    }]),
];
