//! `omnictl init` and `check` on real directories.

#![allow(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{omnictl, report};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

fn run(arguments: &[&str], directory: &Path) -> String {
    report(&omnictl(arguments).output().unwrap(), directory, "[DIR]")
}

/// Writes a model and says what `check` says about it.
fn check(files: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    fs::create_dir(&model).unwrap();
    for (name, text) in files {
        let path = model.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    run(&["check", model.to_str().unwrap()], folder.path())
}

const HANDLER: &str = "def handle_request(request, context):\n    return 'hi'\n";

#[test]
fn a_new_model_passes_its_check() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    for (snapshot, name) in [("init", "hello"), ("init_below", "@acme/summarize")] {
        let model = folder.path().join(name);
        insta::assert_snapshot!(snapshot, run(&["init", name, "--dir", dir], folder.path()));
        let said = run(&["check", model.to_str().unwrap()], folder.path());
        assert_eq!(said, format!("exit 0\n--- stdout\n--- stderr\n[DIR]/{name}: nothing to object to\n"));
        assert!(fs::read_to_string(model.join("model.py")).unwrap().starts_with(&format!("\"\"\"{name}: ")));
    }
    let said = run(&["init", "talk", "--kind", "text-generation", "--dir", dir], folder.path());
    insta::assert_snapshot!("init_kind", said);
    insta::assert_snapshot!("init_again", run(&["init", "hello", "--dir", dir], folder.path()));
    insta::assert_snapshot!("init_bad_name", run(&["init", "../hello", "--dir", dir], folder.path()));
}

/// Kinds in a manifest.
const KINDS: [&str; 7] =
    ["custom", "text-generation", "embeddings", "rerank", "speech-to-text", "text-to-speech", "text-to-image"];

#[test]
fn a_new_model_of_any_kind_passes_its_check_and_its_own_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let package = root.join("worker/python");
    let python = [root.join(".omni/venv/bin/python"), PathBuf::from("python3")].into_iter().find(|python| {
        let import = Command::new(python).args(["-c", "import pytest, omni"]).env("PYTHONPATH", &package).output();
        import.is_ok_and(|output| output.status.success())
    });
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    for kind in KINDS {
        run(&["init", kind, "--kind", kind, "--dir", dir], folder.path());
        let said = run(&["check", folder.path().join(kind).to_str().unwrap()], folder.path());
        let end = format!("[DIR]/{kind}: nothing to object to\n");
        assert!(said.starts_with("exit 0\n--- stdout\n--- stderr\n") && said.ends_with(&end), "{said}");
        let notes = said.lines().filter(|line| line.starts_with("note: ")).collect::<Vec<_>>();
        // The small template shows no tools.
        assert!(notes.iter().all(|note| note.contains("chat_template.jinja: ") && note.contains("tools")), "{notes:?}");
    }
    let Some(python) = python else {
        assert!(std::env::var_os("CI").is_none(), "pytest and the package `omni` must be there");
        eprintln!("skipped: no Python with pytest");
        return;
    };
    let output = Command::new(python)
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib"])
        .current_dir(folder.path())
        .env("PYTHONPATH", &package)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn every_finding_has_a_place_and_a_hint() {
    let handler = ("model.py", HANDLER);
    for (name, files) in [
        ("no_model", &[("omni.toml", "")][..]),
        (
            "manifest",
            &[
                handler,
                (
                    "omni.toml",
                    "schema = 1\n[resources]\nmemmory = \"7GiB\"\ncpus = \"two\"\n[scaling]\nmax-instances = 3\n",
                ),
            ],
        ),
        ("manifest_syntax", &[handler, ("omni.toml", "[resources\n")]),
        ("misnamed", &[("model.py", "def handle_requests(request, context):\n    pass\n")]),
        ("no_handler", &[("model.py", "x = 1\n")]),
        ("no_handler_of_batches", &[handler, ("omni.toml", "[batching]\nmax = 4\n")]),
        ("arguments_of_batches", &[("model.py", "def handle_batch(requests):\n    pass\n")]),
        ("arguments", &[("model.py", "\n\nasync def handle_request(request):\n    pass\n")]),
        ("entrypoint_elsewhere", &[handler, ("omni.toml", "[model]\nentrypoint = \"app.main:serve\"\n")]),
        ("requirements_unreadable", &[handler, ("requirements.txt", "numpy\n--no-cache-dir\n")]),
        ("requirements", &[handler, ("requirements.txt", "numpy==2.2.0\nomni\n")]),
        (
            "hashes",
            &[
                handler,
                ("omni.toml", "[python]\nrequire-hashes = true\n"),
                (
                    "requirements.txt",
                    "a==1 --hash=sha256:0000000000000000000000000000000000000000000000000000000000000000\nnumpy==2.2.0 \\\n    # via a\ncowsay\n",
                ),
            ],
        ),
    ] {
        insta::assert_snapshot!(format!("check_{name}"), check(files));
    }
}

/// No mistakes, and perhaps not what was meant.
#[test]
fn omitted_files_and_inner_models_are_noted() {
    let said = check(&[("model.py", HANDLER), (".env", "A=1"), ("sub/.hidden/x", ""), ("__pycache__/x.pyc", "")]);
    let note = "note: left out of the model, as all names with a leading dot: `.env`, `sub/.hidden`\n";
    assert!(said.starts_with("exit 0\n") && said.contains(note), "{said}");
    let said = check(&[("model.py", HANDLER), ("inner/model.py", HANDLER)]);
    assert!(
        said.starts_with("exit 0\n") && said.contains("note: `inner` has a `model.py`, too: it is inside the model"),
        "{said}"
    );
    let said = check(&[("one/model.py", HANDLER), ("a/b/c/d/model.py", HANDLER)]);
    assert!(said.starts_with("exit 1\n"), "{said}");
    assert!(said.contains("note: `one` has a `model.py`, too: it is a model of its own"), "{said}");
    assert!(said.contains("note: `a/b/c/d` has a `model.py`, too: its path has more than four parts"), "{said}");
    let deep = "d/".repeat(33) + "file";
    let said = check(&[("model.py", HANDLER), (&deep, "")]);
    assert!(said.starts_with("exit 1\n") && said.contains("is more than 32 directories deep: flatten it"), "{said}");
}

/// As Kubernetes mounts a `ConfigMap`.
#[test]
fn links_through_names_with_two_dots_count_as_their_targets() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    fs::create_dir_all(model.join("..2026")).unwrap();
    fs::write(model.join("..2026/model.py"), HANDLER).unwrap();
    symlink("..2026", model.join("..data")).unwrap();
    symlink("..data/model.py", model.join("model.py")).unwrap();
    let said = run(&["check", model.to_str().unwrap()], folder.path());
    assert!(said.starts_with("exit 0\n"), "{said}");
    symlink("..data/absent", model.join("absent")).unwrap();
    let said = run(&["check", model.to_str().unwrap()], folder.path());
    assert!(
        said.starts_with("exit 1\n") && said.contains("`absent` links to `..data/absent`, which is not there"),
        "{said}"
    );
}

#[test]
fn a_syntax_error_is_reported_with_pythons_message() {
    let said = check(&[("model.py", "import os\n\ndef handle_request(request, context)\n    pass\n")]);
    // Message and version are those of the Python that is installed here.
    assert!(said.starts_with("exit 1\n--- stdout\n[DIR]/model/model.py:3: Python 3."), "{said}");
}

#[test]
fn oversized_manifests_are_found() {
    let variables: String = (0..3_000).map(|number| format!("VARIABLE_{number:04} = ''\n")).collect();
    let manifest = format!("[env]\n{variables}");
    assert!(manifest.len() < 64 << 10, "the file itself is not too long");
    let said = check(&[("model.py", HANDLER), ("omni.toml", &manifest)]);
    assert!(
        said.starts_with("exit 1\n--- stdout\n[DIR]/model/omni.toml: omni.toml and its [env] are too large"),
        "{said}"
    );
    assert!(said.contains("put long values into files"), "{said}");
}

#[test]
fn handlers_come_in_many_forms() {
    for (model, manifest) in [
        ("from app import handle_request\n", ""),
        ("from app import *\n", ""),
        ("handle_request = lambda request, context: 1\n", ""),
        ("try:\n    import x\nexcept ImportError:\n    def handle_request(*arguments): ...\n", ""),
        ("class handle_request: ...\n", ""),
        ("@given_by_a_library\ndef handle_request(request): ...\n", ""),
        ("setup = None\ndef teardown(*arguments): ...\ndef handle_request(request, context): ...\n", ""),
        ("async def setup(context, path='/x'): ...\ndef handle_request(request, context): ...\n", ""),
        ("async def handle_request(request, context, *, extra=1):\n    yield 1\n", ""),
        ("def other(a, b, c=1): ...\n", "[model]\nentrypoint = \"model:other\"\n"),
        ("raise SystemExit('this must not run')\ndef handle_request(request, context): ...\n", ""),
    ] {
        let said = check(&[("model.py", model), ("omni.toml", manifest), ("requirements.txt", "")]);
        assert!(said.starts_with("exit 0\n"), "{model}: {said}");
    }
}

#[test]
fn reasons_for_a_refused_start_are_found() {
    for (model, line, message) in [
        ("def setup(): ...\n", 1, "`setup` cannot be called with (context)"),
        ("x = 1\nasync def setup(context, path): ...\n", 2, "`setup` cannot be called with (context)"),
        ("def healthcheck(*, context): ...\n", 1, "`healthcheck` cannot be called with (context)"),
        ("def teardown(a, b): ...\n", 1, "`teardown` cannot be called with (context)"),
        ("setup = 'weights'\n", 1, "`setup` is not a function"),
    ] {
        let said = check(&[("model.py", &format!("{model}{HANDLER}"))]);
        let expected = format!("exit 1\n--- stdout\n[DIR]/model/model.py:{line}: {message}\n");
        assert!(said.starts_with(&expected), "{model}: {said}");
    }
    let said = check(&[("model.py", "handle_request = None\n")]);
    assert!(said.contains("model.py:1: `handle_request` is not a function"), "{said}");
}

#[test]
fn foreign_files_are_found_without_being_opened() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    fs::create_dir_all(model.join("data/.hidden")).unwrap();
    fs::create_dir_all(model.join("__pycache__")).unwrap();
    fs::write(model.join("model.py"), HANDLER).unwrap();
    fs::write(model.join("requirements.txt"), b"numpy\n\xff\n").unwrap();
    mkfifo(&model.join("data/fifo"), Mode::S_IRWXU).unwrap();
    mkfifo(&model.join("data/.hidden/fifo"), Mode::S_IRWXU).unwrap();
    mkfifo(&model.join("__pycache__/fifo"), Mode::S_IRWXU).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(model.join("socket")).unwrap();
    symlink("/etc/passwd", model.join("absolute")).unwrap();
    symlink("../../outside", model.join("data/outside")).unwrap();
    symlink("../../model/model.py", model.join("data/detour")).unwrap();
    symlink("nothing", model.join("dangling")).unwrap();
    symlink("../model.py", model.join("data/inside")).unwrap();
    symlink(".hidden", model.join("data/left-out")).unwrap();
    symlink("../__pycache__/../model.py", model.join("data/through")).unwrap();
    fs::write(folder.path().join("outside"), "").unwrap();
    fs::create_dir(model.join("private")).unwrap();
    fs::set_permissions(model.join("private"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::File::create(model.join("sparse")).unwrap().set_len(100 << 30).unwrap();
    insta::assert_snapshot!("check_foreign_files", run(&["check", model.to_str().unwrap()], folder.path()));
    let json = run(&["check", model.to_str().unwrap(), "-o", "json"], folder.path());
    assert!(json.contains("\"path\": \"[DIR]/model/data/fifo\",\n    \"line\": null,"), "{json}");
    drop(socket);
}

#[test]
fn only_directories_can_be_checked() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    insta::assert_snapshot!("check_missing", run(&["check", missing.to_str().unwrap()], folder.path()));
}

const TEXT: &str = "[model]\nkind = \"text-generation\"\n";

#[test]
fn a_template_that_cannot_be_used_is_found_with_its_line() {
    let broken = "{% for m in messages %}\n{{ m.content }\n{% endfor %}\n";
    let said = check(&[("model.py", HANDLER), ("omni.toml", TEXT), ("chat_template.jinja", broken)]);
    assert!(
        said.starts_with("exit 1") && said.contains("chat_template.jinja:2: the template cannot be used: "),
        "{said}"
    );
    let fails = "{% for m in messages %}\n{{ m.content.nothing.at_all }}\n{% endfor %}\n";
    let said = check(&[("model.py", HANDLER), ("omni.toml", TEXT), ("chat_template.jinja", fails)]);
    let message = "chat_template.jinja:2: the template fails for a plain message of the user: ";
    assert!(said.starts_with("exit 1") && said.contains(message), "{said}");
    for (template, problem) in [
        ("{% for m in mesages %}{{ m.content }}{% endfor %}", "the user's messages are not in the prompt"),
        ("{{ raise_exception('no') }}", "refused: no"),
    ] {
        let said = check(&[("model.py", HANDLER), ("omni.toml", TEXT), ("chat_template.jinja", template)]);
        let message = format!("the template is of no use for a plain message of the user: {problem}");
        assert!(said.starts_with("exit 1") && said.contains(&message), "{said}");
    }
    let named = "{\"chat_template\": \"{{ messages[0].content.nothing.at_all }}\"}";
    let said = check(&[("model.py", HANDLER), ("omni.toml", TEXT), ("tokenizer_config.json", named)]);
    assert!(said.contains("tokenizer_config.json: the template fails for") && said.contains("line 1 of the"), "{said}");
}

#[test]
fn a_template_of_another_name_is_not_read() {
    for name in ["chat_template.jinja2", "chat_template.j2"] {
        let said = check(&[("model.py", HANDLER), ("omni.toml", TEXT), (name, "{{ messages }}")]);
        let message =
            format!("{name}: a node reads no template of this name\n  hint: name the file `chat_template.jinja`");
        assert!(said.starts_with("exit 1") && said.contains(&message), "{said}");
        let itself = format!("{TEXT}[chat]\nrender = \"model\"\n");
        let said = check(&[("model.py", HANDLER), ("omni.toml", &itself), (name, "{{ messages }}")]);
        assert!(said.starts_with("exit 0"), "{said}");
        let right = ("chat_template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
        let said = check(&[("model.py", HANDLER), ("omni.toml", TEXT), (name, "{{ messages }}"), right]);
        assert!(said.starts_with("exit 0"), "{said}");
    }
}

#[test]
fn a_handler_of_another_kind_is_found() {
    let rerank = "[model]\nkind = \"rerank\"\n";
    for handler in [
        "from omni import Embeddings\ndef handle_request(request: Embeddings, context): ...\n",
        "from omni import Embeddings as E\nasync def handle_request(request: 'E', context): ...\n",
        "import omni\ndef handle_request(request: omni.Embeddings, context): ...\n",
        "from omni import *\ndef handle_request(request: Embeddings, context): ...\n",
        "import omni.tasks as t\ndef handle_request(request: t.Embeddings, context): ...\n",
        "import omni.tasks\ndef handle_request(request: omni.tasks.Embeddings, context): ...\n",
        "from omni.tasks import Embeddings\ndef handle_batch(requests: list[Embeddings], context): ...\n",
        "import omni\ndef handle_batch(requests: list[omni.Embeddings], context): ...\n",
        "from omni import tasks\ndef handle_batch(requests: 'typing.Sequence[tasks.Embeddings]', context): ...\n",
    ] {
        let handler = format!("# comment\n{handler}");
        let said = check(&[("model.py", &handler), ("omni.toml", rerank)]);
        let function = if handler.contains("batch") { "handle_batch" } else { "handle_request" };
        let message = format!(
            "[DIR]/model/model.py:3: `{function}` takes requests for embeddings, and `kind` in [model] of omni.toml is \
             rerank: every request is refused\n  hint: annotate it with `Rerank`, or write `kind = \"embeddings\"` in \
             [model] of omni.toml\n"
        );
        assert!(said.starts_with("exit 1") && said.contains(&message), "{handler}: {said}");
        let said = check(&[("model.py", &handler)]);
        let note = format!("note: [DIR]/model/model.py:3: `{function}` takes requests for embeddings, and the model's");
        assert!(said.starts_with("exit 0") && said.contains(&note), "{handler}: {said}");
        assert!(said.contains("; write `kind = \"embeddings\"` in [model] of omni.toml"), "{said}");
        let said = check(&[("model.py", &handler), ("omni.toml", "[model]\nkind = \"embeddings\"\n")]);
        assert!(said.starts_with("exit 0") && !said.contains("takes requests"), "{handler}: {said}");
    }
    let misspelt =
        "from omni import TextGenerationRequest\ndef handle_request(request: TextGenerationRequest, context): ...\n";
    let said = check(&[("model.py", misspelt), ("omni.toml", TEXT)]);
    let message = "model.py:2: `omni` has no `TextGenerationRequest`\n  hint: did you mean `TextGeneration`?";
    assert!(said.starts_with("exit 1") && said.contains(message), "{said}");
    let pydantic =
        "from pydantic import BaseModel\nclass Ask(BaseModel): ...\ndef handle_request(request: Ask, context): ...\n";
    let said = check(&[("model.py", pydantic), ("omni.toml", rerank)]);
    let note =
        "model.py:3: `handle_request` takes a pydantic model, and gets requests for rerank; annotate it with `Rerank`";
    assert!(said.starts_with("exit 0") && said.contains(note), "{said}");
    assert!(!check(&[("model.py", pydantic)]).contains("pydantic model"));
    for own in [
        "from omni import Request\ndef handle_request(request: Request, context): ...\n",
        "from mine import Embeddings\ndef handle_request(request: Embeddings, context): ...\n",
        "def handle_request(request: dict[str, int], context): ...\n",
        "def handle_request(request: 'no type (', context): ...\n",
    ] {
        let said = check(&[("model.py", own), ("omni.toml", rerank)]);
        assert!(said.starts_with("exit 0") && !said.contains("takes requests"), "{own}: {said}");
    }
}

#[test]
fn a_handler_of_batches_is_enough() {
    let handler = "def handle_batch(requests, context):\n    return requests\n";
    let said = check(&[("model.py", handler), ("omni.toml", "[batching]\nmax = 4\n")]);
    assert!(said.starts_with("exit 0\n"), "{said}");
}

#[test]
fn conversations_that_a_template_refuses_are_notes() {
    let template = "{% for m in messages %}\n{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}\n\
                    {{ m.content }}\n{% endfor %}\n";
    let said = check(&[("model.py", HANDLER), ("omni.toml", TEXT), ("chat_template.jinja", template)]);
    assert!(said.starts_with("exit 0"), "{said}");
    assert!(said.contains("chat_template.jinja:2: refused: no system [") && said.contains(" more]"), "{said}");
    let said = check(&[("model.py", HANDLER), ("omni.toml", TEXT)]);
    assert!(said.starts_with("exit 0") && said.contains("conversations are refused"), "{said}");
}

#[test]
fn parsers_have_known_names() {
    let manifest =
        format!("{TEXT}[chat]\ntool-parser = \"hermes2\"\nreasoning-parser = \"none\"\nrender = \"model\"\n");
    let said = check(&[("model.py", HANDLER), ("omni.toml", &manifest)]);
    assert!(said.contains("omni.toml:4: `chat.tool-parser`: there is no parser \"hermes2\""), "{said}");
    assert!(said.contains("hint: write one of auto, hermes, "), "{said}");
    assert!(!said.contains("reasoning-parser"), "{said}");
}

#[test]
fn a_wrong_manifest_of_a_server_does_not_miss_code() {
    let said = check(&[("omni.toml", "[runtime]\nengine = \"openai\"\ncommand = \"server\"\n")]);
    assert!(said.starts_with("exit 1") && said.contains("`runtime.command`"), "{said}");
    assert!(!said.contains("model.py"), "{said}");
}

#[test]
fn a_model_of_the_native_engine_has_weights() {
    let native = format!("{TEXT}[runtime]\nengine = \"native\"\n");
    let said = check(&[("omni.toml", &native), ("notes.txt", "")]);
    let message = "[DIR]/model: there are no weights: neither safetensors nor a GGUF file\n  hint: put them beside";
    assert!(said.starts_with("exit 1") && said.contains(message), "{said}");
    let fetched = format!("{native}[weights]\nsource = \"hf://org/name@main\"\n");
    let taken = [[("omni.toml", native.as_str()), ("w.gguf", "")], [("omni.toml", &fetched), ("notes.txt", "")]];
    for files in taken {
        let said = check(&files);
        assert!(said.starts_with("exit 0") && !said.contains("no weights") && !said.contains("Python"), "{said}");
        let note = "chat_template.jinja: conversations are rendered by the template ";
        assert!(said.contains(note) && !said.contains("are refused"), "the weights may bring one: {said}");
    }
}
