//! Models that cannot be served: each reports the reason to its author, answers 503 and nothing about the inside, and a
//! neighbour serves all the time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::mkfifo;
use omni_control_api::{Model, State};
use omni_tests::neighbour::{self, with_neighbour};
use omni_tests::{Node, PATIENCE, SetOnDrop, wait_for};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const WELL: &str = "def handle_request(request, context):\n    return 'well'\n";

/// Runs the test while requests to the neighbour go on, one after the other; none may fail.
fn beside_a_neighbour(node: &Node, test: impl FnOnce()) {
    let ended = AtomicBool::new(false);
    let http = node.http();
    assert_eq!(neighbour::post(node, "neighbour", &json!(0)).status, 200);
    thread::scope(|scope| {
        let asked = scope.spawn(|| {
            let mut asked = 0;
            while !ended.load(Ordering::Relaxed) {
                let answer = http.run("neighbour", &json!(asked));
                assert_eq!((answer.status, &answer.json()["result"]), (200, &json!(asked)), "{}", answer.text());
                asked += 1;
            }
            asked
        });
        let end = SetOnDrop(&ended);
        test();
        drop(end);
        assert!(asked.join().expect("every request to the neighbour is answered") > 10);
    });
    neighbour::is_well(node, "all of this");
}

/// The model's directory is made by `make` and put in place by one rename.
fn publish(node: &Node, name: &OsStr, make: impl FnOnce(&Path)) {
    let fresh = node.folder().join(".fresh");
    fs::create_dir(&fresh).unwrap();
    fs::write(fresh.join("model.py"), WELL).unwrap();
    make(&fresh);
    fs::rename(fresh, node.folder().join(name)).unwrap();
}

/// The model fails with all these words in its status; a client only learns that it cannot be served now.
fn fails(node: &Node, name: &str, words: &[&str]) -> Model {
    let known = |model: &Model| model.name == name;
    wait_for(&format!("{name} to be seen"), PATIENCE, || node.models().iter().any(known).then_some(()));
    let answer = node.http().run(name, &json!({}));
    assert_eq!((answer.status, answer.error_code()), (503, Some(3040)), "{name}: {}", answer.text());
    assert_eq!(answer.header("x-omni-retry"), Some("other-node"), "{name}");
    assert!(answer.header("retry-after").is_some(), "{name}");
    let told = answer.json()["errors"][0]["message"].as_str().expect("a message").to_owned();
    assert!(!["/", "Traceback", ".py", "toml", "\n"].iter().any(|inside| told.contains(inside)), "{name}: {told}");

    let model = node.model(name);
    let message = model.message.clone().unwrap_or_default();
    assert_eq!(model.state, State::Failed, "{name}: {model:?}");
    assert_eq!(model.instances, [], "{name}");
    // A person reads the same, and a script the exit code.
    let status = node.omnictl(["status", name]);
    assert_eq!(status.code, 3, "{name}: {status:?}");
    for word in words {
        assert!(message.contains(word), "{name}: {word:?} in {message:?}");
        assert!(status.stdout.contains(word), "{name}: {word:?} in {status:?}");
    }
    model
}

#[test]
fn odd_files_in_the_directory() {
    let node = with_neighbour().config("[snapshots]\nfiles = 50\n").start();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "not for models").unwrap();
    let every = Mode::from_bits_truncate(0o666);
    type Make<'a> = &'a dyn Fn(&Path);
    let table: &[(&str, &[&str], Make)] = &[
        ("fifo", &["`data/pipe`", "FIFO", "remove it"], &|dir| {
            fs::create_dir(dir.join("data")).unwrap();
            mkfifo(&dir.join("data/pipe"), every).unwrap();
        }),
        ("code-is-a-fifo", &["`model.py`", "FIFO"], &|dir| {
            fs::remove_file(dir.join("model.py")).unwrap();
            mkfifo(&dir.join("model.py"), every).unwrap();
        }),
        ("manifest-is-a-fifo", &["`omni.toml`", "FIFO"], &|dir| mkfifo(&dir.join("omni.toml"), every).unwrap()),
        ("manifest-is-a-directory", &["`omni.toml` must be a file"], &|dir| {
            fs::create_dir(dir.join("omni.toml")).unwrap();
        }),
        ("device", &["`null`", "device"], &|dir| {
            mknod(&dir.join("null"), SFlag::S_IFCHR, every, makedev(1, 3)).unwrap();
        }),
        ("disk", &["`disk`", "device"], &|dir| mknod(&dir.join("disk"), SFlag::S_IFBLK, every, makedev(7, 0)).unwrap()),
        ("socket", &["`talk`", "socket"], &|dir| drop(UnixListener::bind(dir.join("talk")).unwrap())),
        ("absolute-link", &["`secret`", "absolute link", "relative"], &|dir| {
            symlink(outside.path().join("secret"), dir.join("secret")).unwrap();
        }),
        ("outside-link", &["`up`", "outside the model's directory"], &|dir| {
            symlink("../neighbour/model.py", dir.join("up")).unwrap();
        }),
        ("code-is-outside", &["`model.py`", "outside"], &|dir| {
            fs::remove_file(dir.join("model.py")).unwrap();
            symlink("../neighbour/model.py", dir.join("model.py")).unwrap();
        }),
        ("broken-link", &["`lost`", "not there"], &|dir| symlink("nothing", dir.join("lost")).unwrap()),
        ("circle", &["`round`", "not there"], &|dir| symlink("round", dir.join("round")).unwrap()),
        ("sparse", &["`weights.bin` (65.0 GiB)", "64.0 GiB", "[snapshots]"], &|dir| {
            File::create(dir.join("weights.bin")).unwrap().set_len(65 << 30).unwrap();
        }),
        ("many", &["more than 50 files", "[snapshots]"], &|dir| {
            (0..60).for_each(|n| fs::write(dir.join(format!("{n}.txt")), "").unwrap());
        }),
        ("deep", &["directories deep", "flatten"], &|dir| fs::create_dir_all(dir.join("d/".repeat(40))).unwrap()),
        ("large-manifest", &["`omni.toml` has more than", "shorten"], &|dir| {
            fs::write(dir.join("omni.toml"), "# 16 characters\n".repeat(1 << 16)).unwrap();
        }),
        ("manifest-is-no-text", &["`omni.toml` must be", "UTF-8"], &|dir| {
            fs::write(dir.join("omni.toml"), b"[env]\nA = \"\xff\"\n").unwrap();
        }),
    ];
    beside_a_neighbour(&node, || {
        for (name, words, make) in table {
            publish(&node, OsStr::new(name), make);
            let model = fails(&node, name, words);
            assert_eq!(model.version, None, "{name}: no snapshot");
        }
        // Odd, and served all the same: what only root can read, names that are no text, links that stay inside.
        publish(&node, OsStr::new("private"), |dir| {
            fs::create_dir(dir.join("inner")).unwrap();
            fs::write(dir.join("inner/words.txt"), "read\n").unwrap();
            fs::write(dir.join("model.py"), "def handle_request(request, context):\n    return open('link').read()\n")
                .unwrap();
            symlink("inner/words.txt", dir.join("link")).unwrap();
            fs::write(dir.join(OsStr::from_bytes(b"\xff\n")), "").unwrap();
            for (path, mode) in [("inner/words.txt", 0o600), ("model.py", 0o600), ("inner", 0o700), ("", 0o700)] {
                fs::set_permissions(dir.join(path), Permissions::from_mode(mode)).unwrap();
                chown(dir.join(path), Some(54_321), Some(54_321)).unwrap();
            }
        });
        wait_for("a model that only its author can read", PATIENCE, || {
            (node.http().run("private", &json!({})).json()["result"] == "read\n").then_some(())
        });
    });
    assert_eq!(fs::read_to_string(outside.path().join("secret")).unwrap(), "not for models");
    node.stop();
}

#[test]
fn invalid_names() {
    let node = with_neighbour().start();
    let long = "x".repeat(65);
    let names: &[(&[u8], &str)] = &[
        (b"a..b", "`..`"),
        (b"bad name", "letters, digits"),
        ("modèle".as_bytes(), "letters, digits"),
        (b"a\\b", "letters, digits"),
        (b"%2e%2e", "letters, digits"),
        (b"@", "empty"),
        (long.as_bytes(), "at most 64"),
        (b"\xffraw", "UTF-8"),
        (b"red\x1b[31m", "letters, digits"),
        (b"two\nlines", "letters, digits"),
    ];
    beside_a_neighbour(&node, || {
        for (name, _) in names {
            publish(&node, OsStr::from_bytes(name), |_| ());
        }
        symlink("neighbour", node.folder().join("linked")).unwrap();
        wait_for("the link to be seen", PATIENCE, || (node.models().len() == 2).then_some(()));
        fails(&node, "linked", &["symbolic link", "the directory itself"]);
        // Not models; the log says which directories are not served, and why.
        for (name, word) in names {
            let shown = format!("{:?}", String::from_utf8_lossy(name));
            let told = || {
                node.log().lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).any(|line| {
                    line["directory"] == shown && line["message"].as_str().is_some_and(|why| why.contains(word))
                })
            };
            wait_for(&format!("{shown} and {word} in the log"), PATIENCE, || told().then_some(()));
        }
        assert_eq!(node.models().len(), 2);
        let status = node.omnictl(["status", "a..b"]);
        assert!(status.code != 0 && !status.stderr.is_empty(), "{status:?}");
        // No request reaches them, and none leads out of the models folder.
        for path in ["a..b", "bad%20name", "mod%C3%A8le", "%252e%252e", "..", "..%2f..%2fetc", "neighbour/..", "@"] {
            assert_eq!(node.http().run(path, &json!({})).status, 404, "{path}");
        }
    });
    node.stop();
}

#[test]
fn invalid_manifests() {
    let json = format!("'[{}1]'", "\"a\",".repeat(7_500));
    let two_values = format!("[env]\nA = {json}\nB = {json}\n");
    let table: &[(&str, &str, &[&str])] = &[
        ("too-large", &two_values, &["omni.toml and its [env] are too large", "at most"]),
        ("unknown-key", "[scaling]\nconcurency = 2\n", &["`scaling.concurency` (line 2)", "`concurrency`"]),
        ("unknown-section", "[resource]\nmemory = \"1GiB\"\n", &["resource", "(line 1)", "`resources`"]),
        ("wrong-type", "[resources]\ncpus = \"two\"\n", &["`resources.cpus` (line 2)", "number", "two"]),
        ("wrong-unit", "[resources]\nmemory = \"7GB\"\n", &["`resources.memory` (line 2)", "7GB", "GiB"]),
        ("too-much", "[scaling]\nconcurrency = 100000\n", &["`scaling.concurrency` (line 2)", "1024", "100000"]),
        ("no-toml", "[resources\n", &["omni.toml", "(line 1)"]),
        ("twice", "schema = 1\nschema = 1\n", &["(line 2)", "duplicate"]),
        ("of-the-future", "schema = 2\n", &["`schema` (line 1)", "1"]),
        ("no-entrypoint", "[model]\nentrypoint = \"../x:y\"\n", &["`model.entrypoint` (line 2)"]),
        ("not-its-own", "[env]\nLD_PRELOAD = \"/x.so\"\n", &["LD_PRELOAD", "(line 2)"]),
        ("no-gpu", "[resources]\ngpu-mode = \"device\"\n", &["`resources.gpu-mode` (line 2)"]),
        ("handover", "[limits]\nbody-handover = true\n", &["`limits.body-handover = true`", "[server] body-handover"]),
        ("network", "[network]\naccess = \"host\"\n", &["access", "host-access"]),
        (
            "two-mistakes",
            "[limits]\nbdy = \"1MiB\"\ntmp = 3\n",
            &["`limits.bdy` (line 2)", "`body`", "`limits.tmp` (line 3)"],
        ),
    ];
    let node = with_neighbour().start();
    beside_a_neighbour(&node, || {
        for (name, manifest, _) in table {
            node.publish(name, &[("model.py", WELL), ("omni.toml", manifest)]);
        }
        for (name, _, words) in table {
            fails(&node, name, words);
        }
    });
    node.stop();
}

#[test]
fn code_that_cannot_start() {
    let quick = "[timeouts]\nstartup = \"1s\"\n";
    let table: &[(&str, &str, &str, &[&str])] = &[
        ("syntax", "x = 1\ndef handle_request(request, context:\n", "", &["SyntaxError", "model.py", "line 2"]),
        ("indent", "def handle_request(request, context):\nreturn 1\n", "", &["IndentationError", "line 2"]),
        ("zeros", "\0\0", "", &["null bytes"]),
        ("missing", "x = 1\n", "", &["`handle_request`"]),
        ("no-function", "handle_request = 3\n", "", &["`handle_request`", "int", "not a function"]),
        ("no-module", WELL, "[model]\nentrypoint = \"app:handle\"\n", &["app"]),
        (
            "imports",
            "def deeper():\n    import numpi\ndeeper()\n",
            "",
            &["Traceback", "line 3", "in deeper", "ModuleNotFoundError: No module named 'numpi'"],
        ),
        (
            "raises",
            "def handle_request(request, context): pass\ndef setup(context):\n    raise RuntimeError('no weights')\n",
            "",
            &["RuntimeError: no weights", "setup"],
        ),
        ("leaves", "import sys\nsys.exit('enough')\n", "", &["enough"]),
        ("dies", "import os\nos._exit(7)\n", "", &["7"]),
        ("aborts", "import os\nos.abort()\n", "", &["SIGABRT"]),
        ("hangs", "import time\ntime.sleep(600)\n", quick, &["1s"]),
        ("spins", "while True: pass\n", quick, &["1s"]),
    ];
    let node = with_neighbour().start();
    beside_a_neighbour(&node, || {
        for (name, code, manifest, _) in table {
            node.publish(name, &[("model.py", code), ("omni.toml", manifest)]);
        }
        for (name, _, _, words) in table {
            fails(&node, name, words);
        }
    });
    node.stop();
}

#[test]
fn requirements_that_cannot_be_met() {
    let table: &[(&str, &str, &[&str])] = &[
        ("nowhere", "omni-no-such-package-of-anybody==1.0\n", &["omni-no-such-package-of-anybody", "not found"]),
        ("no-version", "cowsay==99.99\n", &["cowsay==99.99", "unsatisfiable"]),
        ("contradicts", "cowsay==6.1\ncowsay==6.0\n", &["cowsay==6.1", "cowsay==6.0"]),
        ("no-syntax", "cowsay=>6 @@\n", &["cowsay=>6 @@"]),
        ("no-file", "-r more.txt\n", &["more.txt"]),
    ];
    let node = with_neighbour().start();
    beside_a_neighbour(&node, || {
        for (name, requirements, _) in table {
            node.publish(name, &[("model.py", WELL), ("requirements.txt", requirements)]);
        }
        for (name, _, words) in table {
            let model = fails(&node, name, words);
            assert_eq!(model.retry_in_seconds, None, "{name}: only other requirements can help");
        }
        // Repaired, it is served.
        node.publish("nowhere", &[("model.py", WELL), ("requirements.txt", "# nothing\n")]);
        wait_for("the repaired one", PATIENCE, || (node.http().run("nowhere", &json!({})).status == 200).then_some(()));
    });
    node.stop();
}
