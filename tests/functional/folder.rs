//! The models folder while the node runs: new models are served, removed ones drained, changed ones take over when they
//! are ready, unservable ones report the reason, and half-written ones are ignored.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_control_api::State;
use omni_tests::{Node, PATIENCE, SetOnDrop, Stream, wait_for};
use serde_json::json;
use std::fs;
use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// Answers with a word of its version once the body is complete.
fn version(word: &str) -> String {
    format!(
        "def handle_request(request, context):\n    for piece in request.body.stream():\n        print('began {word}')\n    return '{word}'\n"
    )
}

/// A request that stays in flight as long as the test wants: its body has begun and not ended.
fn begin(node: &Node, model: &str, word: &str) -> TcpStream {
    let mut connection = node.http().connect();
    let head = format!(
        "POST /ai/run/{model} HTTP/1.1\r\nhost: localhost\r\ncontent-type: image/x\r\ntransfer-encoding: chunked\r\n"
    );
    connection.write_all(format!("{head}\r\n4\r\nbody\r\n").as_bytes()).unwrap();
    let began = format!("began {word}");
    wait_for(&began, PATIENCE, || node.omnictl(["logs", model]).stdout.contains(&began).then_some(()));
    connection
}

fn finish(mut begun: TcpStream) -> (u16, String) {
    begun.write_all(b"0\r\n\r\n").unwrap();
    let answer = Stream::read(BufReader::new(begun)).whole();
    (answer.status, answer.json()["result"].as_str().unwrap_or_default().to_owned())
}

fn names(node: &Node) -> Vec<String> {
    node.models().into_iter().map(|model| model.name).collect()
}

#[test]
fn new_models_are_served_and_half_written_ones_are_not() {
    let node = Node::builder().start();
    assert_eq!(names(&node), Vec::<String>::new());
    assert_eq!(node.http().run("new", &json!(0)).status, 404);
    let folder = node.folder();

    // In the making, under names with a dot; and a folder that has no model in it.
    for name in [".new", "@cf/.hidden/x", "@cf/meta/.half", "notes"] {
        fs::create_dir_all(folder.join(name)).unwrap();
    }
    for name in [".new/model.py", "@cf/.hidden/x/model.py", "@cf/meta/.half/model.py"] {
        fs::write(folder.join(name), version("half")).unwrap();
    }
    fs::write(folder.join("notes/readme.txt"), "nothing").unwrap();
    node.publish("other", &[("model.py", &version("other"))]);
    node.says("other", "other");
    assert_eq!(names(&node), ["other"]);

    // A single rename makes it a model, whole and at once, at any depth.
    fs::rename(folder.join(".new"), folder.join("new")).unwrap();
    node.says("new", "half");
    fs::rename(folder.join("@cf/meta/.half"), folder.join("@cf/meta/whole")).unwrap();
    node.says("@cf/meta/whole", "half");
    assert_eq!(node.http().run("@cf%2Fmeta%2Fwhole", &json!(0)).status, 200);
    assert_eq!(names(&node), ["@cf/meta/whole", "new", "other"]);

    // A folder above models moves all of them.
    fs::rename(folder.join("@cf"), folder.join("@moved")).unwrap();
    node.says("@moved/meta/whole", "half");
    wait_for("the old name to go", PATIENCE, || (names(&node) == ["@moved/meta/whole", "new", "other"]).then_some(()));
    assert_eq!(node.http().run("@cf/meta/whole", &json!(0)).status, 404);

    // The last line in place: the directory was there, and becomes a model with its file.
    fs::write(folder.join("notes/model.py"), version("noted")).unwrap();
    node.says("notes", "noted");
    node.stop();
}

#[test]
fn a_removed_model_is_drained() {
    let node = Node::builder().model("going", &[("model.py", &version("last"))]).start();
    node.says("going", "last");
    let engine = node.engine("going").expect("a process");
    let begun = begin(&node, "going", "last");
    node.unpublish("going");
    wait_for("its end", PATIENCE, || (node.http().run("going", &json!(0)).status == 404).then_some(()));
    assert_eq!(names(&node), Vec::<String>::new());
    assert!(omni_tests::process::is_alive(engine), "it has a request still");
    assert_eq!(finish(begun), (200, "last".to_owned()));
    wait_for("the process to end", PATIENCE, || (!omni_tests::process::is_alive(engine)).then_some(()));
    wait_for("its files to go", PATIENCE, || node.traces().is_empty().then_some(()));

    // The model can come back, also while its predecessor drains.
    node.publish("going", &[("model.py", &version("again"))]);
    node.says("going", "again");
    let begun = begin(&node, "going", "again");
    node.unpublish("going");
    wait_for("its end", PATIENCE, || (node.http().run("going", &json!(0)).status == 404).then_some(()));
    node.publish("going", &[("model.py", &version("third"))]);
    node.says("going", "third");
    assert_eq!(finish(begun), (200, "again".to_owned()));
    assert_eq!(node.http().run("going", &json!(0)).json()["result"], "third");
    node.stop();
}

/// `mv going .old && mv .new going`, as people do it: for a moment there is no such directory.
#[test]
fn a_model_replaced_by_two_renames_is_not_removed() {
    let node = Node::builder().model("going", &[("model.py", &version("0"))]).start();
    node.says("going", "0");
    let folder = node.folder();
    let (stop, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let stopping = SetOnDrop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let answer = node.http().run("going", &json!(0));
                assert_eq!(answer.status, 200, "{}", answer.text());
                asked.fetch_add(1, Ordering::Relaxed);
            }
        });
        for number in 1..=5 {
            let new = folder.join(".new");
            fs::create_dir(&new).unwrap();
            fs::write(new.join("model.py"), version(&number.to_string())).unwrap();
            fs::rename(folder.join("going"), folder.join(format!(".old-{number}"))).unwrap();
            fs::rename(&new, folder.join("going")).unwrap();
            node.says("going", &number.to_string());
        }
        drop(stopping);
    });
    assert!(asked.into_inner() > 0);
    node.stop();
}

#[test]
fn a_changed_model_is_started_again() {
    let node = Node::builder()
        .model("changing", &[("model.py", &version("one"))])
        .model("other", &[("model.py", &version("other"))])
        .start();
    node.says("changing", "one");
    node.says("other", "other");
    let before = node.model("changing");
    let other = node.engine("other");

    // Requests in flight end on the old content; new ones go to the new content.
    let begun = begin(&node, "changing", "one");
    let model = node.folder().join("changing/model.py");
    let replace = |text: &str| {
        let fresh = model.with_file_name(".model.py");
        fs::write(&fresh, text).unwrap();
        fs::rename(fresh, &model).unwrap();
    };
    replace(&version("two"));
    node.says("changing", "two");
    assert_eq!(finish(begun), (200, "one".to_owned()));
    let after = node.model("changing");
    assert_ne!(after.version, before.version);
    assert_eq!((after.restarts, after.last_exit.as_deref()), (0, None), "a change is no death");

    // Written in place, as an editor or cp does.
    fs::write(&model, version("three")).unwrap();
    node.says("changing", "three");
    wait_for("the versions before it to end", PATIENCE, || (node.model("changing").instances.len() == 1).then_some(()));
    // Nothing that is no content starts it anew: caches of Python, files with a dot, the same text once more.
    let (engine, kept) = (node.engine("changing"), node.model("changing").version);
    fs::create_dir(model.with_file_name("__pycache__")).unwrap();
    fs::write(model.with_file_name("__pycache__/model.cpython-311.pyc"), "x").unwrap();
    fs::write(model.with_file_name(".swp"), "x").unwrap();
    fs::write(&model, version("three")).unwrap();
    // A change of the other is seen after these.
    fs::write(node.folder().join("other/model.py"), version("another")).unwrap();
    node.says("other", "another");
    wait_for("the older process to end", PATIENCE, || (node.engine("other") != other).then_some(()));
    assert_eq!((node.engine("changing"), node.model("changing").version), (engine, kept));
    node.stop();
}

#[test]
fn an_unservable_model_reports_the_reason_until_it_is_repaired() {
    let code = version("well");
    let node =
        Node::builder().model("odd", &[("model.py", &code), ("omni.toml", "[scaling]\nconcurency = 2\n")]).start();
    let fails = |words: &[&str]| {
        let failed = wait_for("a failed model", PATIENCE, || {
            let model = node.model("odd");
            let told = model.message.clone().unwrap_or_default();
            (model.state == State::Failed && words.iter().all(|word| told.contains(word))).then_some(model)
        });
        let refused = node.http().run("odd", &json!(0));
        assert_eq!((refused.status, refused.error_code()), (503, Some(3040)), "{failed:?}");
        let status = node.omnictl(["status", "odd"]);
        assert!(status.code == 3 && status.stdout.contains(words[0]), "{status:?}");
    };
    fails(&["concurency", "concurrency", "2"]);
    let manifest = node.folder().join("odd/omni.toml");
    fs::write(&manifest, "[scaling]\nconcurrency = 2\n").unwrap();
    node.says("odd", "well");

    // Broken while it runs: what served goes on, and the status says why the new content does not.
    let refuses = |words: &[&str]| {
        wait_for("a refused content", PATIENCE, || {
            let model = node.model("odd");
            let candidate = model.candidate().and_then(|candidate| candidate.message.clone());
            let told = model.directory.refused.or(candidate).unwrap_or_default();
            words.iter().all(|word| told.contains(word)).then_some(())
        });
        let status = node.omnictl(["status", "odd"]);
        assert!(status.stdout.contains(words[0]), "{status:?}");
        assert_eq!(node.http().run("odd", &json!(0)).json()["result"], "well");
    };
    fs::write(&manifest, "[resources]\nmemory = \"7GB\"\n").unwrap();
    refuses(&["memory", "7GB"]);
    fs::write(&manifest, "[resources\n").unwrap();
    refuses(&["omni.toml"]);
    fs::remove_file(&manifest).unwrap();
    wait_for("the repair to be seen", PATIENCE, || {
        let model = node.model("odd");
        (model.directory.refused.is_none() && model.directory.version == model.version).then_some(())
    });

    // The error in its code is found only by running it.
    let model = node.folder().join("odd/model.py");
    fs::write(&model, "def handle_request(request, context:\n").unwrap();
    refuses(&["SyntaxError", "model.py"]);
    fs::write(&model, "def handle(request, context):\n    return 1\n").unwrap();
    refuses(&["handle_request"]);
    fs::write(&model, &code).unwrap();
    wait_for("the repair to be seen", PATIENCE, || node.model("odd").candidate().is_none().then_some(()));
    node.says("odd", "well");
    assert_eq!(node.model("odd").message, None);
    node.stop();
}

#[test]
fn a_missing_models_folder_is_reported_and_is_not_a_404() {
    let node = Node::builder().model("here", &[("model.py", &version("here"))]).start();
    node.says("here", "here");
    let (folder, away) = (node.folder().to_owned(), node.folder().with_extension("away"));
    fs::rename(&folder, &away).unwrap();
    wait_for("the node to say it", PATIENCE, || (node.admin().get("/readyz").status == 503).then_some(()));
    assert!(node.admin().get("/readyz").text().contains("the models folder is gone"));
    let list = node.omnictl(["list"]).stdout;
    assert!(list.contains("the models folder is gone"), "{list}");
    wait_for("its model to be gone", PATIENCE, || names(&node).is_empty().then_some(()));
    let answer = node.http().run("here", &json!(0));
    assert_eq!((answer.status, answer.header("retry-after").is_some()), (503, true), "{}", answer.text());
    fs::rename(&away, &folder).unwrap();
    wait_for("its model", PATIENCE, || (node.http().run("here", &json!(0)).status == 200).then_some(()));
    assert_eq!(node.admin().get("/readyz").status, 200);
    assert!(!node.omnictl(["list"]).stdout.contains("folder is gone"));
    node.stop();
}
