//! Weights that the node fetches: once for all models of equal content, within the node's rules, and kept.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

#[path = "../../worker/weights/downloader/tests/server/mod.rs"]
mod server;

use omni_control_api::State;
use omni_tests::clients::run_without_node;
use omni_tests::probe::{self, assert_found, probe};
use omni_tests::{Node, NodeBuilder, PATIENCE, wait_for};
use serde_json::{Value, json};
use server::{Served, Server, content};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

const PROBE: (&str, &str) = ("model.py", probe::MODEL);
const MIB: usize = 1 << 20;
/// Bytes of the request for a file's size.
const PROBES: u64 = 1;

fn manifest(source: &str, more: &str) -> String {
    format!("schema = 1\n[weights]\nsource = \"{source}\"\n{more}")
}

/// A node that may fetch from the server, which is on this machine.
fn node(server: &Server, more: &str) -> NodeBuilder {
    let prefix = server.url("");
    Node::builder()
        .config(&format!("[weights]\nprivate-hosts = [\"127.0.0.1\"]\n{more}[weights.sources.\"{prefix}\"]\n"))
}

fn sha256(content: &[u8]) -> String {
    Sha256::digest(content).iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// Asks a model that cannot start, and returns what the node says of it.
fn refused(node: &Node, model: &str) -> String {
    let answer = node.http().run(model, &json!("tell(ran=True)"));
    assert!(answer.status >= 500, "{model}: {} {}", answer.status, answer.text());
    let model = node.model(model);
    model.message.or(model.directory.refused).unwrap_or_default()
}

#[test]
fn eight_instances_of_three_models_of_equal_content_cause_one_download() {
    let server = Server::start();
    let bytes = content(1, 40 * MIB);
    server.put("/w.bin", Served { slow: Some(Duration::from_millis(5)), ..Served::new(bytes.clone()) });
    let scaling = |count: usize| {
        format!("[scaling]\nmin-instances = {count}\nmax-instances = {count}\n[resources]\nmemory = \"128MiB\"\n")
    };
    let text = |count: usize| manifest(&server.url("/w.bin"), &scaling(count));
    let counts: [(&str, usize); 3] = [("one", 4), ("two", 2), ("three", 2)];
    let mut node = counts
        .iter()
        .fold(node(&server, ""), |node, (name, count)| node.model(name, &[PROBE, ("omni.toml", &text(*count))]))
        .start();
    for (name, count) in counts {
        wait_for("the instances", PATIENCE, || {
            let ready = node.model(name).instances.iter().filter(|instance| instance.state == State::Ready).count();
            (ready == count).then_some(())
        });
    }
    let look = "
import hashlib
file = context.weights_dir / 'w.bin'
def change():
    file.open('r+')
attempt('change', change)
attempt('new', lambda: (context.weights_dir / 'new').write_text('x'))
tell(sha256=hashlib.sha256(file.read_bytes()).hexdigest())
";
    let expected = json!({"change": "EACCES", "new": "EROFS", "sha256": sha256(&bytes)});
    for (name, _) in counts {
        assert_found(&node, name, look, &expected);
    }
    let inode = "found = (context.weights_dir / 'w.bin').stat()\ntell(inode=found.st_ino, device=found.st_dev)";
    let files: BTreeSet<String> = counts.iter().map(|(name, _)| json!(probe(&node, name, inode)).to_string()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    assert_eq!(server.bytes(), bytes.len() as u64 + PROBES);

    // Fetched weights need no server any more: not for a new scheduler and launcher, not for a new start.
    let requests = server.requests().len();
    server.put("/w.bin", Served { status: Some(500), ..Served::new(Vec::new()) });
    node.crash();
    node.start_again();
    assert_eq!(node.omnictl(["restart", "one", "--wait"]).code, 0);
    assert_found(&node, "one", look, &expected);
    assert_eq!(server.requests().len(), requests);
    node.stop();
}

#[test]
fn a_pull_fetches_and_starts_nothing_and_shows_its_progress() {
    let server = Server::start();
    let bytes = content(1, 40 * MIB);
    server.put("/w.bin", Served { slow: Some(Duration::from_millis(150)), ..Served::new(bytes) });
    let text = manifest(&server.url("/w.bin"), "");
    let node = node(&server, "").model("m", &[PROBE, ("omni.toml", &text)]).start();
    node.await_seen("m");
    assert_eq!(node.omnictl(["pull", "m"]).code, 0);
    let message = wait_for("progress", PATIENCE, || {
        node.model("m").message.filter(|message| message.contains("MiB") && !message.contains(" 0.0 of"))
    });
    assert!(message.starts_with("fetching weights: ") && message.ends_with(" of 40.0 MiB"), "{message}");
    let status = node.omnictl(["status", "m"]);
    assert!(status.stdout.contains("fetching weights: "), "{}", status.stdout);
    assert_eq!(node.omnictl(["pull", "m", "--wait"]).code, 0);
    assert_eq!((node.model("m").state, node.model("m").instances.len()), (State::Stopped, 0));
    let log = node.omnictl(["logs", "m"]).stdout;
    assert!(log.contains("unverified"), "{log}");
    let requests = server.requests().len();
    assert_found(&node, "m", "tell(names=os.listdir(context.weights_dir))", &json!({"names": ["w.bin"]}));
    assert_eq!(server.requests().len(), requests);
    node.stop();
}

#[test]
fn a_stop_ends_a_pull_and_gives_its_place_to_others() {
    let server = Server::start();
    let good = Served::new(content(1, 4 * MIB));
    let stuck = Served { slow: Some(Duration::from_mins(10)), ..Served::new(content(2, 4 * MIB)) };
    for (path, served) in [("/good", good), ("/one", stuck.clone()), ("/two", stuck)] {
        server.put(path, served);
    }
    let names = ["one", "two", "good"];
    let node = names.iter().fold(node(&server, ""), |node, name| {
        node.model(name, &[PROBE, ("omni.toml", &manifest(&server.url(&format!("/{name}")), ""))])
    });
    let mut node = node.start();
    let shows = |name: &str, text: &str| {
        wait_for(text, PATIENCE, || node.model(name).message.filter(|message| message.contains(text)))
    };
    for (name, text) in names.iter().zip(["0.0 of 4.0 MiB", "0.0 of 4.0 MiB", "waits for the source"]) {
        node.await_seen(name);
        assert_eq!(node.omnictl(["pull", name]).code, 0);
        shows(name, text);
    }
    assert_eq!(node.omnictl(["stop", "one"]).code, 0);
    let pulled = node.omnictl(["pull", "good", "--wait"]);
    assert!(pulled.code == 0 && pulled.stdout.contains("fetched 4MiB in "), "{pulled:?}");
    let again = node.omnictl(["pull", "good", "--wait"]);
    assert!(again.code == 0 && again.stdout.contains("already here"), "{again:?}");
    let cancelled = "omni_weights_downloads_total{outcome=\"cancelled\"}";
    wait_for(cancelled, PATIENCE, || (node.metric(cancelled) == Some(1.0)).then_some(()));
    assert_eq!((node.model("one").state, node.model("two").state), (State::Stopped, State::Preparing));
    // The launcher, and what it fetches, goes on over an upgrade.
    node.upgrade();
    node.await_seen("two");
    wait_for("its content", PATIENCE, || node.model("two").directory.version);
    assert_eq!(node.omnictl(["stop", "two"]).code, 0);
    wait_for("its end", PATIENCE, || (node.metric(cancelled) == Some(2.0)).then_some(()));
    node.stop();
}

#[test]
fn a_pull_of_a_held_model_waits_for_its_weights_or_says_why_not() {
    let server = Server::start();
    let bytes = content(1, 8 * MIB);
    let well = Served { slow: Some(Duration::from_millis(20)), ..Served::new(bytes.clone()) };
    server.put("/w.bin", well.clone());
    server.put("/forbidden", Served { status: Some(403), ..well });
    let text = |path: &str| manifest(&server.url(path), "");
    let (good, bad) = (text("/w.bin"), text("/forbidden"));
    let node = node(&server, "")
        .model("good", &[PROBE, ("omni.toml", &good)])
        .model("bad", &[PROBE, ("omni.toml", &bad)])
        .start();
    for name in ["good", "bad"] {
        node.await_seen(name);
        assert_eq!(node.omnictl(["stop", name]).code, 0);
    }
    let pulled = node.omnictl(["pull", "good", "--wait"]);
    assert_eq!((pulled.code, server.bytes()), (0, bytes.len() as u64 + PROBES), "{pulled:?}");
    let refused = node.omnictl(["pull", "bad", "--wait"]);
    assert!(refused.code == 3 && refused.stderr.contains("answers 403"), "{refused:?}");
    for name in ["good", "bad"] {
        let model = node.model(name);
        assert_eq!((model.state, model.held, model.instances.len()), (State::Stopped, true, 0), "{name}");
    }
    let size = bytes.len() as f64;
    for (metric, expected) in [
        ("omni_weights_downloads_total{outcome=\"fetched\"}", 1.0),
        ("omni_weights_downloads_total{outcome=\"refused\"}", 1.0),
        ("omni_weights_downloads_total{outcome=\"failed\"}", 0.0),
        ("omni_weights_fetched_bytes_total", size),
        ("omni_weights_cache_bytes", size),
        ("omni_weights_cache_limit_bytes", (100_u64 << 30) as f64),
    ] {
        wait_for(metric, PATIENCE, || (node.metric(metric) == Some(expected)).then_some(()));
    }
    node.stop();
}

/// Configuration of a node that fetches from a store, with the smallest cache.
fn store(server: &Server, more: &str) -> String {
    format!(
        "[weights]\ncache = \"1GiB\"\nprivate-hosts = [\"127.0.0.1\"]\n[weights.sources.\"s3://bucket\"]\n\
         endpoint = {:?}\n{more}",
        server.url("")
    )
}

/// Puts one object, `w.bin`, below a prefix of the bucket.
fn put_object(server: &Server, prefix: &str, object: Served) {
    let (size, etag) = (object.content.len(), object.etag.clone().unwrap());
    let list = format!(
        "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>{prefix}/w.bin</Key><Size>{size}</Size>\
         <ETag>{etag}</ETag></Contents></ListBucketResult>"
    );
    let list = Served::new(list.into_bytes());
    server.put(&format!("/bucket/?encoding-type=url&list-type=2&prefix={prefix}"), list);
    server.put(&format!("/bucket/{prefix}/w.bin"), object);
}

#[test]
fn an_adopted_instance_keeps_its_weights_when_its_content_has_others_by_now() {
    let (before, now) = (Server::start(), Server::start());
    let old = content(1, MIB);
    put_object(&before, "m", Served::new(old.clone()));
    put_object(&now, "m", Served::new(content(2, MIB)));
    // Not there before the launcher has looked for room.
    put_object(&now, "other", Served { slow: Some(Duration::from_secs(2)), ..Served::new(content(3, MIB)) });
    let [m, other] = ["m", "other"].map(|name| manifest(&format!("s3://bucket/{name}"), ""));
    let builder = Node::builder().config(&store(&before, "")).model("m", &[PROBE, ("omni.toml", &m)]);
    let mut node = builder.model("other", &[PROBE, ("omni.toml", &other)]).start();
    let look = "import hashlib\ntell(sha256=hashlib.sha256((context.weights_dir / 'w.bin').read_bytes()).hexdigest())";
    let expected = json!({"sha256": sha256(&old)});
    assert_found(&node, "m", look, &expected);
    let instance = node.model("m").instances[0].id.clone();
    node.crash();
    // Recorded as so large that the cache has room for one of the others.
    let records = node.folder().with_file_name("cache").join("weights/records");
    let paths = || fs::read_dir(&records).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let mut record: Value = serde_json::from_slice(&fs::read(&paths()[0]).unwrap()).unwrap();
    record["files"][0]["size"] = json!((1_u64 << 30) - MIB as u64 * 3 / 2);
    fs::write(&paths()[0], record.to_string()).unwrap();
    node.configure(&store(&now, ""));
    node.start_again();
    // The launcher makes way for one with this configuration meanwhile.
    let pull = || node.omnictl(["pull", "m", "--wait"]);
    wait_for("the other store's weights", PATIENCE, || (pull().code == 0).then_some(()));
    assert_eq!(paths().len(), 2);
    let said = refused(&node, "other");
    assert!(said.contains("raise `cache`"), "{said}");
    assert_eq!(node.model("m").instances[0].id, instance);
    assert_found(&node, "m", look, &expected);
    node.stop();
}

#[test]
fn what_cannot_be_fetched_says_why_to_its_model() {
    let server = Server::start();
    let bytes = content(1, MIB);
    let well = Served::new(bytes);
    let redirect = |to: &str| Served { redirect: Some(to.to_owned()), ..well.clone() };
    server.put("/w", well.clone());
    server.put("/forbidden", Served { status: Some(403), ..well.clone() });
    server.put("/metadata", redirect("http://169.254.169.254/latest/meta-data/"));
    let models = [
        ("forbidden", "/forbidden", "", "answers 403"),
        ("absent", "/absent", "", "there is no"),
        (
            "digest",
            "/w",
            "sha256 = \"0000000000000000000000000000000000000000000000000000000000000000\"\n",
            "another content",
        ),
        ("metadata", "/metadata", "", "is not listed as `redirects`"),
    ];
    let builder = models.iter().fold(node(&server, ""), |node, (name, path, more, _)| {
        node.model(name, &[PROBE, ("omni.toml", &manifest(&server.url(path), more))])
    });
    let other = manifest("s3://bucket/other", "");
    let mut node = builder.model("other", &[PROBE, ("omni.toml", &other)]).start();
    for (name, _, _, why) in models {
        let said = refused(&node, name);
        assert!(said.contains(why), "{name}: {said}");
        assert_eq!(node.model(name).restarts, 0, "{name}: nothing was started");
    }
    // The next scheduler, which has not tried yet, knows it, too.
    node.upgrade();
    for (name, _, _, why) in models {
        node.await_seen(name);
        wait_for(why, PATIENCE, || node.model(name).message.filter(|message| message.contains(why)));
    }
    let said = refused(&node, "other");
    assert!(said.contains("`[weights.sources]`"), "{said}");
    // A redirect to the node's own admin listener.
    server.put("/admin", redirect(&format!("http://{}/metrics", node.admin_address())));
    node.publish("admin", &[PROBE, ("omni.toml", &manifest(&server.url("/admin"), ""))]);
    node.await_seen("admin");
    let said = refused(&node, "admin");
    assert!(said.contains("is not listed as `redirects`"), "{said}");
    // The source gets right, and the operator says so.
    server.put("/forbidden", well);
    assert_eq!(node.omnictl(["restart", "forbidden", "--wait"]).code, 0);
    node.stop();
}

#[test]
fn the_credential_of_a_source_signs_its_requests() {
    let server = Server::start();
    let bytes = content(1, MIB);
    put_object(&server, "m", Served::new(bytes));
    let dir = tempfile::tempdir().unwrap();
    let credential = dir.path().join("store");
    fs::write(&credential, "the-access-key\nthe-secret-key\n").unwrap();
    let config = store(&server, &format!("credential = {credential:?}\n"));
    let text = manifest("s3://bucket/m", "files = []\n");
    let node = Node::builder().config(&config).model("m", &[PROBE, ("omni.toml", &text)]).start();
    assert_found(&node, "m", "tell(names=os.listdir(context.weights_dir))", &json!({"names": ["w.bin"]}));
    let signed = |head: &String| head.contains("Credential=the-access-key/");
    assert!(server.requests().iter().all(signed), "{:?}", server.requests());
    assert!(!node.log().contains("the-secret-key"));
    node.stop();
}

#[test]
fn stores_and_hubs_of_others_are_read_and_a_hub_as_its_own_client_does() {
    run_without_node("test_weights.py");
}

#[test]
fn a_killed_node_goes_on_where_its_download_was() {
    let server = Server::start();
    let bytes = content(1, 48 * MIB);
    let stuck = Served { status: Some(500), ..Served::new(Vec::new()) };
    let half = Served { then: Some((4, Box::new(stuck))), ..Served::new(bytes.clone()) };
    server.put("/w.bin", half);
    let text = manifest(&server.url("/w.bin"), "");
    let mut node = node(&server, "").model("m", &[PROBE, ("omni.toml", &text)]).start();
    node.await_seen("m");
    assert_eq!(node.omnictl(["pull", "m"]).code, 0);
    wait_for("a half", PATIENCE, || (server.bytes() > 16 * MIB as u64).then_some(()));
    node.crash();
    let before = server.bytes();
    server.put("/w.bin", Served::new(bytes.clone()));
    node.start_again();
    let look = "import hashlib\ntell(sha256=hashlib.sha256((context.weights_dir / 'w.bin').read_bytes()).hexdigest())";
    assert_found(&node, "m", look, &json!({"sha256": sha256(&bytes)}));
    let fetched = server.bytes() - before;
    assert!(fetched < 35 * MIB as u64, "{fetched} bytes after the crash");
    node.stop();
}
