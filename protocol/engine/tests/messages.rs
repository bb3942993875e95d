//! Every message of the control socket, held still by snapshots: an engine may be of another release than its worker.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod json_lines;

use json_lines::lines;
use omni_engine_protocol::control::{Boot, EngineBoot, FromEngine, HandlerMode, ToEngine};

#[test]
fn engine() {
    let boot = Boot {
        model: "@cf/meta/llama".into(),
        instance: "0123456789ab".into(),
        engine: EngineBoot::Python { module: "model".into(), function: "handle_request".into() },
        model_dir: "/model".into(),
        cache_dir: "/cache".into(),
        weights_dir: None,
        device: "cpu".into(),
        concurrency: 1,
        batches: false,
    };
    insta::assert_snapshot!("to_engine", lines(&[ToEngine::Boot(boot), ToEngine::Attach, ToEngine::Stop]));
    insta::assert_snapshot!(
        "from_engine",
        lines(&[
            FromEngine::Forked,
            FromEngine::Ready { mode: HandlerMode::Serial },
            FromEngine::Ready { mode: HandlerMode::Concurrent },
            FromEngine::Failed { phase: "import".into(), message: "no module".into() },
        ])
    );
}
