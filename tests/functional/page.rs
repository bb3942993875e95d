//! The node's page in a real browser.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_tests::Node;
use omni_tests::browser::{TOKENS, run_page_tests};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use tempfile::TempDir;

const ECHO: &str = "\
def handle_request(request, context):
    print('asked once', flush=True)
    if request.headers.get('content-type') == 'application/octet-stream':
        return f'{len(request.body.bytes)} bytes'
    return request.body.json
";
/// A PNG of one pixel.
const PICTURE: &str = "\
import base64
from omni import Response

PIXEL = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='

def handle_request(request, context):
    return Response(base64.b64decode(PIXEL), media_type='image/png')
";
const BROKEN: &str = "raise RuntimeError('as the model says')\n";
const CHAT: &[(&str, &str)] = &[
    ("model.py", include_str!("../clients/chat/model.py")),
    ("omni.toml", include_str!("../clients/chat/omni.toml")),
    ("chat_template.jinja", include_str!("../clients/chat/chat_template.jinja")),
];

#[test]
fn the_page_in_a_browser() {
    let folder = TempDir::with_prefix("omni-page").unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let tokens = folder.path().join("tokens.toml");
    fs::write(&tokens, TOKENS).unwrap();
    let node = Node::builder()
        .config(&format!("[server]\ntokens = \"{}\"\n", tokens.display()))
        .model("chat", CHAT)
        .model("echo", &[("model.py", ECHO)])
        .model("picture", &[("model.py", PICTURE)])
        .model("broken", &[("model.py", BROKEN), ("omni.toml", "schema = 1\n[scaling]\nmin-instances = 1\n")])
        .start();
    run_page_tests(&node, "page.test.mjs");
    node.stop();
}
