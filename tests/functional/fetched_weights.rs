//! Weights that the node fetches: once for all models of equal content, within the node's rules, and kept.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

#[path = "../../worker/weights/downloader/tests/server/mod.rs"]
mod server;

use omni_control_api::State;
use omni_tests::clients::run_without_node;
use omni_tests::probe::{self, assert_found, probe};
use omni_tests::{Node, NodeBuilder, PATIENCE, wait_for};
use serde_json::json;
use server::{Served, Server, content};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fmt::Write as _;
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
    let node = builder.model("other", &[PROBE, ("omni.toml", &other)]).start();
    for (name, _, _, why) in models {
        let said = refused(&node, name);
        assert!(said.contains(why), "{name}: {said}");
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
    let object = Served::new(bytes);
    let (size, etag) = (object.content.len(), object.etag.clone().unwrap());
    let list = format!(
        "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>m/w.bin</Key><Size>{size}</Size>\
         <ETag>{etag}</ETag></Contents></ListBucketResult>"
    );
    server.put("/bucket/?encoding-type=url&list-type=2&prefix=m", Served::new(list.into_bytes()));
    server.put("/bucket/m/w.bin", object);
    let dir = tempfile::tempdir().unwrap();
    let credential = dir.path().join("store");
    std::fs::write(&credential, "the-access-key\nthe-secret-key\n").unwrap();
    let config = format!(
        "[weights]\nprivate-hosts = [\"127.0.0.1\"]\n[weights.sources.\"s3://bucket\"]\nendpoint = {:?}\n\
         credential = {credential:?}\n",
        server.url("")
    );
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
    let bytes = content(1, 96 * MIB);
    let stuck = Served { status: Some(500), ..Served::new(Vec::new()) };
    let half = Served { then: Some((4, Box::new(stuck))), ..Served::new(bytes.clone()) };
    server.put("/w.bin", half);
    let text = manifest(&server.url("/w.bin"), "");
    let mut node = node(&server, "").model("m", &[PROBE, ("omni.toml", &text)]).start();
    node.await_seen("m");
    assert_eq!(node.omnictl(["pull", "m"]).code, 0);
    wait_for("a half", PATIENCE, || (server.bytes() > 32 * MIB as u64).then_some(()));
    node.crash();
    let before = server.bytes();
    server.put("/w.bin", Served::new(bytes.clone()));
    node.start_again();
    let look = "import hashlib\ntell(sha256=hashlib.sha256((context.weights_dir / 'w.bin').read_bytes()).hexdigest())";
    assert_found(&node, "m", look, &json!({"sha256": sha256(&bytes)}));
    let fetched = server.bytes() - before;
    assert!(fetched < 70 * MIB as u64, "{fetched} bytes after the crash");
    node.stop();
}
