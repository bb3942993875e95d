//! Environments of models: built once for all models with equal requirements, from the index in the node's
//! configuration, visible to the author, and protected from changes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_control_api::State;
use omni_tests::index::{Behaviour, Index, write_source};
use omni_tests::{Node, PATIENCE, wait_for};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

/// Says what a package holds.
fn says(package: &str) -> String {
    format!("import {package}\ndef handle_request(request, context):\n    return {package}.WORD\n")
}

/// Finished environments of the node.
fn environments(node: &Node) -> Vec<PathBuf> {
    let folder = node.folder().parent().expect("beside the models").join("cache/environments");
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension() == Some(OsStr::new("json"))).collect()
}

fn result(node: &Node, model: &str, body: &Value) -> Value {
    let answer = node.http().run(model, body);
    assert_eq!(answer.status, 200, "{model}: {} {:?}\n{}", answer.text(), node.model(model), node.log());
    answer.json()["result"].take()
}

#[test]
fn equal_requirements_share_one_environment() {
    let index = Index::start(Behaviour::Holds);
    index.add("omni-one", "WORD = 'one'", &[]);
    index.add("omni-two", "WORD = 'two'", &["omni-one", "omni-nobody-has-this"]);
    let (one, two) = (says("omni_one"), says("omni_two"));
    let node = Node::builder()
        .config(&format!("[python]\nindex-url = \"{}\"\n", index.url()))
        .model("a", &[("model.py", &one), ("requirements.txt", "omni-one==1.0\n")])
        .model("b", &[("model.py", &one), ("requirements.txt", "omni-one==1.0\n"), ("omni.toml", "[env]\nA = \"b\"\n")])
        .model("bare", &[("model.py", &two), ("requirements.txt", "omni-two==1.0\n")])
        .model(
            "overridden",
            &[
                ("model.py", &two),
                ("requirements.txt", "omni-two==1.0\n"),
                ("overrides.txt", "omni-nobody-has-this ; sys_platform == 'never'\n"),
            ],
        )
        .start();

    let http = node.http();
    thread::scope(|scope| {
        let asked = ["a", "b"].map(|model| (model, scope.spawn(move || http.run(model, &json!({})))));
        // The package does not come: the build is seen at work, and what it said so far.
        for model in ["a", "b"] {
            wait_for("the build to say something", PATIENCE, || {
                let model = node.model(model);
                let told = model.build_log.iter().any(|line| line.contains("Resolved 1 package"));
                (model.state == State::Preparing && told).then_some(())
            });
            let status = node.omnictl(["status", model]);
            assert!(status.stdout.contains("preparing") && status.stdout.contains("Resolved 1 package"), "{status:?}");
            let logs = node.omnictl(["logs", model]);
            assert!(logs.stdout.contains("build  Resolved 1 package"), "{logs:?}");
        }
        index.set(Behaviour::Serves);
        for (model, answer) in asked {
            let answer = answer.join().unwrap();
            assert_eq!((answer.status, &answer.json()["result"]), (200, &json!("one")), "{model}\n{}", node.log());
        }
    });
    assert_eq!(environments(&node).len(), 1, "both have one");
    assert_eq!(node.log().matches("building an environment").count(), 1);

    // Other inputs are another one; and an override counts as an input.
    let refused = node.http().run("bare", &json!({}));
    assert_eq!((refused.status, refused.error_code()), (503, Some(3040)), "{}", refused.text());
    assert!(!refused.text().contains("omni-nobody"), "{}", refused.text());
    let bare = node.omnictl(["status", "bare"]);
    assert!(bare.code == 3 && bare.stdout.contains("omni-nobody-has-this was not found"), "{bare:?}");
    assert_eq!(environments(&node).len(), 1);
    assert_eq!(result(&node, "overridden", &json!({})), "two");
    assert_eq!(environments(&node).len(), 2);
    // New code in an old environment.
    let other = one.replace("omni_one.WORD", "omni_one.WORD + '!'");
    node.publish("a", &[("model.py", &other), ("requirements.txt", "omni-one==1.0\n")]);
    wait_for("the new code", PATIENCE, || (node.http().run("a", &json!({})).json()["result"] == "one!").then_some(()));
    assert_eq!(environments(&node).len(), 2);
    node.stop();
}

#[test]
fn an_index_that_is_out_of_reach_is_asked_again() {
    let index = Index::start(Behaviour::Fails);
    index.add("omni-one", "WORD = 'one'", &[]);
    let node = Node::builder()
        .config(&format!("[python]\nindex-url = \"{}\"\n", index.url()))
        .model("late", &[("model.py", &says("omni_one")), ("requirements.txt", "omni-one\n")])
        .model("without", &[("model.py", "def handle_request(request, context):\n    return 'well'\n")])
        .start();
    let refused = node.http().run("late", &json!({}));
    assert_eq!((refused.status, refused.error_code()), (503, Some(3040)), "{}", refused.text());
    assert!(refused.header("retry-after").is_some() && !refused.text().contains("127.0.0.1"), "{}", refused.text());
    let failed = node.model("late");
    assert_eq!(failed.state, State::Failed);
    assert!(failed.retry_in_seconds.is_some(), "it is worth another try: {failed:?}");
    let why = failed.message.expect("a reason");
    assert!(why.contains("error sending request") && why.contains(&index.url()), "uv's own words: {why}");
    assert_eq!(result(&node, "without", &json!({})), "well", "who needs no package needs no index");

    index.set(Behaviour::Serves);
    wait_for("the model, without anybody's help", PATIENCE, || {
        (node.http().run("late", &json!({})).status == 200).then_some(())
    });
    assert_eq!(node.model("late").message, None);
    node.stop();
}

#[test]
fn an_environment_cannot_be_changed_by_its_model() {
    let index = Index::start(Behaviour::Serves);
    index.add("omni-one", "WORD = 'one'", &[]);
    let code = r#"
import errno, os, sys, omni_one

def handle_request(request, context):
    site = os.path.dirname(omni_one.__file__)
    ways = {
        "write": lambda: open(omni_one.__file__, "a"),
        "remove": lambda: os.remove(omni_one.__file__),
        "rename": lambda: os.rename(omni_one.__file__, site + "/x.py"),
        "add": lambda: open(site + "/sitecustomize.py", "w"),
        "link": lambda: os.link(omni_one.__file__, "/tmp/linked"),
        "mode": lambda: os.chmod(omni_one.__file__, 0o777),
        "bytecode": lambda: open(omni_one.__cached__, "wb"),
        "interpreter": lambda: open(os.path.realpath(sys.executable), "ab"),
    }
    found = {}
    for name, way in ways.items():
        try:
            way()
            found[name] = "done"
        except OSError as error:
            found[name] = errno.errorcode[error.errno]
    return found
"#;
    let node = Node::builder()
        .config(&format!("[python]\nindex-url = \"{}\"\n", index.url()))
        .model("tries", &[("model.py", code), ("requirements.txt", "omni-one\n")])
        .start();
    let found = result(&node, "tries", &json!({}));
    let found = found.as_object().unwrap();
    assert_eq!(found.len(), 8);
    for (way, said) in found {
        let refused = ["EROFS", "EACCES", "EPERM", "EXDEV", "ETXTBSY"].map(Value::from);
        assert!(refused.contains(said), "{way}: {said}");
    }
    node.stop();
}

/// Builds a wheel whose module says what the build could do to the machine.
const HOSTILE: &str = r#"
import errno, glob, os, signal, socket, subprocess, zipfile

def attempts():
    found = {}
    def attempt(name, function):
        try:
            function()
            found[name] = "done"
        except Exception as error:
            found[name] = errno.errorcode.get(getattr(error, "errno", None), type(error).__name__)
    for folder in ("CACHE", "CACHE/uv", "CACHE/environments", "MODELS", "MODELS/victim", "/usr", "/etc", "/run"):
        attempt(folder, lambda: open(folder + "/.hostile", "w"))
    attempt("other's module", lambda: open(glob.glob("CACHE/environments/*/lib/python*/site-packages/omni_one.py")[0], "a"))
    attempt("model", lambda: open("MODELS/victim/model.py", "a"))
    attempt("shadow", lambda: open("/etc/shadow"))
    attempt("kill", lambda: os.kill(SCHEDULER, signal.SIGKILL))
    attempt("root", lambda: os.setuid(0))
    for name in ("control.sock", "launcher.sock"):
        attempt(name, lambda: socket.socket(socket.AF_UNIX).connect("RUNTIME/" + name))
    # This one wants to stay.
    subprocess.Popen(["sleep", "86400.OWN"], start_new_session=True, stdin=-3, stdout=-3, stderr=-3)
    with open("/tmp/.hostile-OWN", "w") as file:
        file.write("x")
    return found

def build_wheel(directory, settings=None, metadata=None):
    name = "omni_hostile-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as archive:
        info = "omni_hostile-1.0.dist-info"
        archive.writestr("omni_hostile.py", f"WORD = {attempts()!r}")
        archive.writestr(info + "/METADATA", "Metadata-Version: 2.1\nName: omni-hostile\nVersion: 1.0\n")
        archive.writestr(info + "/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(info + "/RECORD", "")
    return name
"#;

#[test]
fn a_packages_build_reaches_nothing_of_the_node() {
    let index = Index::start(Behaviour::Serves);
    index.add("omni-one", "WORD = 'one'", &[]);
    let links = tempfile::tempdir().unwrap();
    fs::set_permissions(links.path(), Permissions::from_mode(0o755)).unwrap();
    let python = format!("[python]\nindex-url = \"{}\"\nfind-links = [\"{}\"]\n", index.url(), links.path().display());
    let victim = [("model.py", says("omni_one")), ("requirements.txt", "omni-one\n".to_owned())];
    let victim = victim.each_ref().map(|(name, text)| (*name, text.as_str()));
    let node = Node::builder().config(&python).model("victim", &victim).start();
    assert_eq!(result(&node, "victim", &json!({})), "one");

    let folder = node.folder();
    let cache = folder.parent().unwrap().join("cache");
    let own = node.pid().to_string();
    let backend = HOSTILE
        .replace("CACHE", cache.to_str().unwrap())
        .replace("MODELS", folder.to_str().unwrap())
        .replace("RUNTIME", node.control_socket().parent().unwrap().to_str().unwrap())
        .replace("SCHEDULER", &own)
        .replace("OWN", &own);
    write_source(links.path(), "omni-hostile", &backend);
    node.publish("hostile", &[("model.py", &says("omni_hostile")), ("requirements.txt", "omni-hostile\n")]);
    node.await_seen("hostile");
    let found = result(&node, "hostile", &json!({}));
    let found = found.as_object().unwrap();
    assert_eq!(found.len(), 15, "{found:?}");
    for (what, said) in found {
        let refused = ["EACCES", "EPERM", "EROFS", "ENOENT", "ESRCH", "IndexError"].map(Value::from);
        assert!(refused.contains(said), "{what}: {said}");
    }
    // The host agrees, nothing stayed, and the victim starts as it did before.
    let stay = format!("sleep\0{}.{own}", 86_400);
    let lines = fs::read_dir("/proc").unwrap().flatten().map(|entry| fs::read_to_string(entry.path().join("cmdline")));
    assert!(!lines.flatten().any(|line| line.starts_with(&stay)), "the build's own process is gone with it");
    assert!(!Path::new(&format!("/tmp/.hostile-{own}")).exists());
    assert_eq!(node.omnictl(["restart", "victim", "--wait"]).code, 0);
    assert_eq!(result(&node, "victim", &json!({})), "one");
    node.stop();
}

#[test]
fn an_existing_environment_is_used_as_it_is() {
    // Open to all users: a model is not root.
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let [mine, foreign] = ["mine", "foreign"].map(|name| {
        let venv = folder.path().join(name);
        let made = Command::new("/usr/bin/env").args(["python3", "-m", "venv", "--without-pip"]).arg(&venv).status();
        assert!(made.unwrap().success());
        venv
    });
    let version = fs::read_dir(mine.join("lib")).unwrap().next().unwrap().unwrap().path();
    let module = version.join("site-packages/existing.py");
    fs::write(&module, "WORD = 'there already'").unwrap();
    // The file's mode would let a model write to it: only the mount prevents it.
    fs::set_permissions(&module, Permissions::from_mode(0o666)).unwrap();
    chown(&foreign, Some(54_321), None).unwrap();

    let manifest = |venv: &Path| format!("[runtime]\ninterpreter = \"{}/bin/python\"\n", venv.display());
    let code = "import existing, sys\ndef handle_request(request, context):\n    try:\n        open(existing.__file__, 'a')\n    except OSError as error:\n        return [existing.WORD, sys.prefix, error.strerror]\n";
    let node = Node::builder()
        // Not read: the environment is there.
        .model(
            "uses",
            &[("model.py", code), ("omni.toml", &manifest(&mine)), ("requirements.txt", "omni-nobody-has-this\n")],
        )
        .model("foreign", &[("model.py", code), ("omni.toml", &manifest(&foreign))])
        .model("nowhere", &[("model.py", code), ("omni.toml", &manifest(Path::new("/nowhere")))])
        .start();
    let said = result(&node, "uses", &json!({}));
    assert_eq!(said, json!(["there already", mine, "Read-only file system"]));
    for (model, words) in [("foreign", "can be changed by others than root"), ("nowhere", "/nowhere/bin/python")] {
        let refused = node.http().run(model, &json!({}));
        assert_eq!((refused.status, refused.error_code()), (503, Some(3040)), "{model}: {}", refused.text());
        assert!(!refused.text().contains("/bin/"), "{}", refused.text());
        let status = node.omnictl(["status", model]);
        assert!(status.code == 3 && status.stdout.contains(words), "{status:?}");
    }
    node.stop();
}
