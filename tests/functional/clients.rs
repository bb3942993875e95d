//! Clients that we did not write, unmodified, against a node.

use omni_tests::Node;
use std::path::Path;
use std::process::Command;

const ECHO: &str = "def handle_request(request, context):\n    return request.body.json\n";
const HELLO: &str = "\
from omni import Response

def handle_request(request, context):
    try:
        return 'hello ' + request.body.json['prompt']
    except KeyError:
        return Response.error(400, 'prompt is missing')
";
const PICTURE: &str = "\
from omni import Response

def handle_request(request, context):
    return Response(b'\\x89PNG\\r\\n\\x1a\\nnot really', media_type='image/png')
";
const COUNT: &str = "\
async def handle_request(request, context):
    for number in range(int(request.body.json['prompt'])):
        yield str(number)
";
const RAISES: &str = "\
CALLS = 0

def handle_request(request, context):
    global CALLS
    if request.body.json['prompt'] == 'calls':
        return CALLS
    CALLS += 1
    raise RuntimeError('as asked')
";
const SLOW: &str = "\
import time

def handle_request(request, context):
    time.sleep(float(request.body.json['prompt']))
    return 'slept'
";

#[test]
fn the_cloudflare_sdk_works_unmodified() {
    let node = Node::builder()
        .model("echo", &[("model.py", ECHO)])
        .model("@cf/meta/echo", &[("model.py", ECHO)])
        .model("hello", &[("model.py", HELLO)])
        .model("picture", &[("model.py", PICTURE)])
        .model("count", &[("model.py", COUNT)])
        .model("raises", &[("model.py", RAISES)])
        .model("slow", &[("model.py", SLOW), ("omni.toml", "[scaling]\nqueue = 0\n")])
        .start();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let tests = Command::new(root.join(".omni/venv/bin/pytest"))
        .args(["-q", "-p", "no:cacheprovider", "clients/test_cloudflare.py"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("OMNI_URL", format!("http://{}", node.data_address()))
        .output()
        .expect("pytest of .omni/venv: `make setup` makes it");
    let told = String::from_utf8_lossy(&tests.stdout);
    assert!(tests.status.success(), "{told}\n{}\n{}", String::from_utf8_lossy(&tests.stderr), node.log());
}
