//! Clients that we did not write, unmodified, against a model with real weights on the native engine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_tests::Node;
use omni_tests::clients::run_clients;

/// Files of `tests/clients/native`, those of PyPI and those of npm.
const SUITES: [&str; 9] = [
    "test_openai.py",
    "test_anthropic.py",
    "test_litellm.py",
    "test_langchain.py",
    "test_cloudflare.py",
    "openai.test.mjs",
    "anthropic.test.mjs",
    "ai.test.mjs",
    "cloudflare.test.mjs",
];

#[test]
fn clients_work_unmodified_with_the_native_engine() {
    let node = Node::builder().example("chat").start();
    for file in SUITES {
        run_clients(&node, &format!("native/{file}"));
    }
    assert_eq!(node.model("chat").restarts, 0, "{}", node.log_about("chat"));
    node.stop();
}
