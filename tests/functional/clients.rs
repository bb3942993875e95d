//! Clients that we did not write, unmodified, against a node.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_tests::clients::{run_clients, run_without_node};
use omni_tests::{Node, NodeBuilder};
use std::path::Path;

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
    let node = with_kinds(with_text_models(Node::builder()))
        .model("echo", &[("model.py", ECHO)])
        .model("@cf/meta/echo", &[("model.py", ECHO)])
        .model("hello", &[("model.py", HELLO)])
        .model("picture", &[("model.py", PICTURE)])
        .model("count", &[("model.py", COUNT)])
        .model("raises", &[("model.py", RAISES)])
        .model("slow", &[("model.py", SLOW), ("omni.toml", "[scaling]\nqueue = 0\n")])
        .start();
    run_clients(&node, "test_cloudflare.py");
    run_clients(&node, "cloudflare.test.mjs");
}

/// Files of a model in `tests/clients`.
fn client_model(name: &str) -> Vec<(String, String)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(name);
    let files = std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let file = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        entry.file_type().unwrap().is_file().then(|| {
            let text = std::fs::read_to_string(entry.path()).unwrap();
            (entry.file_name().into_string().unwrap(), text)
        })
    };
    files.filter_map(file).collect()
}

/// A node with models that generate text by a script, and models that make embeddings.
fn text_node() -> Node {
    with_text_models(Node::builder()).start()
}

fn with_text_models(builder: NodeBuilder) -> NodeBuilder {
    with_models(builder, ["chat", "vectors"])
}

/// The same below names with slashes.
fn workers_ai_node() -> Node {
    let builder = with_models(with_text_models(Node::builder()), ["@cf/meta/chat", "@cf/meta/vectors"]);
    with_kinds(builder).start()
}

fn with_models(builder: NodeBuilder, names: [&str; 2]) -> NodeBuilder {
    let [chat, vectors] = names;
    with_model(with_model(builder, chat, "chat"), vectors, "vectors")
}

/// The same with models that transcribe, speak, draw and rank.
fn with_kinds(builder: NodeBuilder) -> NodeBuilder {
    ["hear", "say", "draw", "rank"].into_iter().fold(builder, |builder, name| with_model(builder, name, name))
}

fn with_model(builder: NodeBuilder, name: &str, dir: &str) -> NodeBuilder {
    let files: &'static [(String, String)] = client_model(dir).leak();
    let files: Vec<_> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    builder.model(name, &files)
}

#[test]
fn the_openai_sdk_works_unmodified() {
    let node = with_kinds(with_text_models(Node::builder())).start();
    run_clients(&node, "test_openai.py");
    run_clients(&node, "openai.test.mjs");
}

#[test]
fn the_anthropic_sdk_works_unmodified() {
    let node = text_node();
    run_clients(&node, "test_anthropic.py");
    run_clients(&node, "anthropic.test.mjs");
}

#[test]
fn answers_have_the_form_of_the_openapi_document() {
    run_clients(&text_node(), "test_schema.py");
}

#[test]
fn the_suite_of_langchain_passes() {
    run_clients(&text_node(), "test_langchain.py");
}

#[test]
fn litellm_works_unmodified() {
    run_clients(&workers_ai_node(), "test_litellm.py");
}

#[test]
fn the_ai_sdk_works_unmodified_with_the_providers_of_openai() {
    let node = text_node();
    run_clients(&node, "ai-openai.test.mjs");
    run_clients(&node, "ai-openai-compatible.test.mjs");
}

#[test]
fn the_ai_sdk_works_unmodified_with_the_provider_of_anthropic() {
    run_clients(&text_node(), "ai-anthropic.test.mjs");
}

#[test]
fn the_ai_sdk_works_unmodified_with_the_provider_of_workers_ai() {
    run_clients(&workers_ai_node(), "workers-ai-provider.test.mjs");
}

#[test]
fn clients_read_the_golden_files() {
    for file in ["test_shapes.py", "shapes.test.mjs"] {
        run_without_node(file);
    }
}
