//! The environment of a model as a program: its user's variables, caches that last, `/dev/stdout`; and answers sent as
//! the handler made them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_tests::probe::{self, assert_found, probe};
use omni_tests::{Node, PATIENCE, wait_for};
use serde_json::json;

const PROBE: (&str, &str) = ("model.py", probe::MODEL);

#[test]
fn caches_of_libraries_last_and_are_no_memory() {
    let manifest = ("omni.toml", "[resources]\nmemory = \"64MiB\"\n[env]\nTRITON_CACHE_DIR = \"/tmp/triton\"\n");
    let node = Node::builder().model("one", &[PROBE, manifest]).start();
    let write = "
from pathlib import Path
home = Path.home() / '.cache' / 'lib'
home.mkdir(parents=True)
(home / 'weights').write_bytes(bytes(100 << 20))
names = 'HF_HOME MPLCONFIGDIR NUMBA_CACHE_DIR TORCHINDUCTOR_CACHE_DIR TORCH_HOME XDG_CACHE_HOME'.split()
for name in names:
    os.makedirs(os.environ[name], exist_ok=True)
    Path(os.environ[name], 'kept').write_text(name)
tell(triton=os.environ['TRITON_CACHE_DIR'])
";
    assert_found(&node, "one", write, &json!({"triton": "/tmp/triton"}));
    assert_eq!(node.omnictl(["restart", "one", "--wait"]).code, 0, "{}", node.log());
    let read = "
from pathlib import Path
tell(weights=(Path(os.environ['XDG_CACHE_HOME']) / 'lib' / 'weights').stat().st_size)
tell(kept=Path(os.environ['HF_HOME'], 'kept').read_text(), same=(Path.home() / '.cache').resolve() == Path('/cache/.cache'))
tell(inside=os.environ['TORCH_HOME'].startswith(str(context.cache_dir)))
";
    assert_found(&node, "one", read, &json!({"weights": 100 << 20, "kept": "HF_HOME", "same": true, "inside": true}));
    node.stop();
}

#[test]
fn a_model_finds_its_user_and_can_open_its_output() {
    let preload = ("omni.toml", "[python]\npreload = [\"json\"]\n");
    let node = Node::builder().model("one", &[PROBE]).model("forked", &[PROBE, preload]).start();
    let code = "
import getpass, logging, pwd, subprocess, tempfile
tell(user=getpass.getuser(), login=os.environ['LOGNAME'], home=os.environ['HOME'], shell=os.environ['SHELL'])
tell(same=pwd.getpwuid(os.getuid()).pw_name == os.environ['USER'], tmp=tempfile.gettempdir(), lang=os.environ['LANG'])
handler = logging.FileHandler('/dev/stderr')
handler.emit(logging.makeLogRecord({'msg': 'by-file-handler'}))
with open('/dev/stdout', 'w') as out:
    out.write('by-open\\n')
tell(child=subprocess.run(['sh', '-c', 'echo by-child >/dev/stderr; echo by-child-too >>/dev/stdout']).returncode)
attempt('read', lambda: open('/dev/stdout').close())
";
    let expected = json!({
        "user": "model", "login": "model", "home": "/tmp/home", "shell": "/bin/sh", "same": true, "tmp": "/tmp",
        "lang": "C.UTF-8", "child": 0, "read": "EACCES",
    });
    for model in ["one", "forked"] {
        assert_found(&node, model, code, &expected);
        for line in ["by-file-handler", "by-open", "by-child", "by-child-too"] {
            wait_for("a line in the log", PATIENCE, || {
                node.omnictl(["logs", model, "-n", "1000"]).stdout.contains(line).then_some(())
            });
        }
    }
    assert!(probe(&node, "one", "tell(path=os.environ['PATH'])")["path"].as_str().unwrap().ends_with("/usr/bin:/bin"));
    node.stop();
}

const ANSWERS: &str = r#"
from omni import Response

def events(fail):
    yield b": ping\n\n"
    yield b"event: tick\nid: 7\nda"
    yield b"ta: 1\n\n"
    if fail:
        yield b"event: half"
        raise ValueError("boom")

def mixed():
    yield {"n": 1}
    yield b": ping\n\n"

HEADERS = {f"x-h-{n}": "v" for n in range(40)}

def handle_request(request, context):
    what = request.body.json
    if what == "many":
        return Response("x", headers={**HEADERS, "Content-Type": "text/plain"})
    if what == "problem":
        return Response({"title": "no"}, 422, media_type="application/problem+json")
    if what == "details":
        return Response({"detail": [{"loc": ["blur"]}]}, status=422)
    if what == "dropped":
        return Response("x", headers={"x-request-id": "mine"})
    if what == "mixed":
        return Response.stream(mixed(), media_type="text/event-stream")
    return Response.stream(events(what == "fail"), media_type="text/event-stream")
"#;

#[test]
fn an_answer_is_sent_as_the_handler_made_it_or_fails_with_an_error() {
    let node = Node::builder().model("answers", &[("model.py", ANSWERS)]).start();
    let ask = |what: &str| node.http().run("answers", &json!(what));

    let many = ask("many");
    assert_eq!((many.status, many.text().as_str(), many.header("content-type")), (200, "x", Some("text/plain")));
    assert!((0..40).all(|n| many.header(&format!("x-h-{n}")) == Some("v")));

    let problem = ask("problem");
    assert_eq!((problem.status, problem.header("content-type")), (422, Some("application/problem+json")));
    assert_eq!(problem.json(), json!({"title": "no"}));

    let details = ask("details");
    let errors = json!([{"code": 5004, "message": "the model answered with status 422"}]);
    let result = json!({"detail": [{"loc": ["blur"]}]});
    assert_eq!(details.status, 422);
    assert_eq!(details.json(), json!({"result": result, "success": false, "errors": errors, "messages": []}));

    assert_eq!(ask("dropped").status, 500);
    let told = "the header 'x-request-id' is set by the node";
    wait_for("the reason in the log", PATIENCE, || {
        node.omnictl(["logs", "answers", "-n", "1000"]).stdout.contains(told).then_some(())
    });

    let own = ask("own");
    assert_eq!(own.header("content-type"), Some("text/event-stream"));
    assert_eq!(own.text(), ": ping\n\nevent: tick\nid: 7\ndata: 1\n\n");
    assert_eq!(ask("mixed").text(), "data: {\"n\":1}\n\n: ping\n\ndata: [DONE]\n\n");
    let failed = ask("fail").text();
    let (before, last) = failed.rsplit_once("event: half").unwrap();
    assert!(before.ends_with("data: 1\n\n"));
    assert_eq!(last, "\n\ndata: {\"error\":{\"message\":\"the model failed on this request\"}}\n\n");
    node.stop();
}
