//! Handle and connection, with a launcher in the test.

use crate::handle::{EnvironmentRequest, LauncherHandle};
use crate::{LauncherError, LauncherEvent, ModelEvent, PreparationMetrics};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use omni_config::name::ModelName;
use omni_engine_protocol::packet::{MAX_PACKET, recv_packet_no_fds, send_packet};
use omni_node_protocol::id::SnapshotDigest;
use omni_node_protocol::launcher::{
    FromLauncher, OPEN_WEIGHTS_SINCE, Serves, StartSpec, ToLauncher, VERSIONS, WeightsPlace,
};
use omni_task::{Heartbeat, Mailbox, Watchdog};
use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use tokio::sync::mpsc;

fn heartbeat() -> Heartbeat {
    Watchdog::default().heartbeat("launcher")
}

fn request() -> EnvironmentRequest {
    EnvironmentRequest {
        model: ModelName::try_from("a".to_owned()).unwrap(),
        snapshot: SnapshotDigest::parse(&"0".repeat(64)).unwrap(),
        python: "3.11".into(),
        interpreter: None,
        require_hashes: false,
        weights: None,
    }
}

fn spec(instance: &str) -> StartSpec {
    let digest = "0".repeat(64);
    let spec = serde_json::json!({
        "instance": instance, "model": "a", "snapshot": digest,
        "engine": {"kind": "python", "environment": digest, "module": "model", "function": "handle"},
        "memory_bytes": 1, "cpu_millis": 1, "pids": 1, "tmp_bytes": 1, "cache_bytes": 1, "concurrency": 1,
        "host_network": false, "env": {}, "log_lines_per_second": 1, "note": "",
    });
    serde_json::from_value(spec).unwrap()
}

/// Mailbox of a model, and its inbox.
fn mailbox() -> (Mailbox<ModelEvent>, mpsc::Receiver<ModelEvent>) {
    let (sender, inbox) = mpsc::channel(4);
    (Mailbox::new(sender, |event| event), inbox)
}

#[tokio::test]
async fn requests_are_refused_at_once_without_a_launcher() {
    let (events, _unread) = mpsc::channel(1);
    let path = "/nonexistent/launcher.sock".into();
    let handle = LauncherHandle::start(path, None, BTreeMap::new(), PreparationMetrics::default(), events, heartbeat());
    let (mailbox, inbox) = mailbox();
    assert_eq!(handle.prepare(request(), &mailbox), Err(LauncherError::Silent));
    assert_eq!(handle.start_instance(spec("0123456789ab"), mailbox), Err(LauncherError::Silent));
    assert!(inbox.is_empty(), "no reply comes beside");
}

/// Socket of the launcher in the test. The standard library's listener accepts on any kind of Unix socket.
fn listener(path: &Path) -> UnixListener {
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(listener.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
    listen(&listener, Backlog::new(1).unwrap()).unwrap();
    listener.into()
}

/// Connects to a launcher with this protocol version: the first message that it receives, and the version that the
/// handle reports if that is an old one.
async fn greeted_by(protocol: u32) -> (ToLauncher, Option<u32>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("launcher.sock");
    let listener = listener(&path);
    let (sender, mut events) = mpsc::channel(4);
    let handle = LauncherHandle::start(path, None, BTreeMap::new(), PreparationMetrics::default(), sender, heartbeat());
    let hello = tokio::task::spawn_blocking(move || {
        let peer = listener.accept().unwrap().0;
        let hello = recv_packet_no_fds(&peer).unwrap();
        for message in [FromLauncher::Welcome { protocol }, FromLauncher::Scanned] {
            send_packet(&peer, &message, &[]).unwrap();
        }
        (hello, peer)
    });
    assert!(matches!(events.recv().await, Some(LauncherEvent::Scanned)));
    let (hello, peer) = hello.await.unwrap();
    let version = handle.old_protocol();
    drop(peer);
    (hello, version)
}

#[tokio::test]
async fn a_launcher_of_an_earlier_release_is_reported() {
    let ours = ToLauncher::Hello { protocol: VERSIONS.newest, oldest: Some(VERSIONS.oldest) };
    assert_eq!(greeted_by(VERSIONS.newest - 1).await, (ours.clone(), Some(VERSIONS.newest - 1)));
    assert_eq!(greeted_by(VERSIONS.newest).await, (ours, None));
}

#[tokio::test]
async fn a_message_larger_than_a_packet_fails_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("launcher.sock");
    let listener = listener(&path);
    let (sender, mut events) = mpsc::channel(4);
    let handle = LauncherHandle::start(path, None, BTreeMap::new(), PreparationMetrics::default(), sender, heartbeat());
    let receives = tokio::task::spawn_blocking(move || {
        let peer = listener.accept().unwrap().0;
        send_packet(&peer, &FromLauncher::Scanned, &[]).unwrap();
        loop {
            match recv_packet_no_fds(&peer).unwrap() {
                ToLauncher::Start(spec) => return (spec.instance, peer),
                ToLauncher::Prepare { python, .. } => assert_eq!(python, "3.11"),
                ToLauncher::Hello { .. } | ToLauncher::KeptAll => {}
                other => panic!("{other:?}"),
            }
        }
    });
    assert!(matches!(events.recv().await, Some(LauncherEvent::Scanned)));
    let (mailbox, mut replies) = mailbox();

    let interpreter = Some("/x".repeat(MAX_PACKET / 2).into());
    handle.prepare(EnvironmentRequest { interpreter, ..request() }, &mailbox).unwrap();
    let reply = replies.recv().await;
    assert!(matches!(reply, Some(ModelEvent::PrepareFailed { permanent: true, .. })), "{reply:?}");

    let (large, small) = (spec("0123456789ab"), spec("ba9876543210"));
    handle.start_instance(StartSpec { note: "x".repeat(MAX_PACKET), ..large.clone() }, mailbox.clone()).unwrap();
    let Some(ModelEvent::StartFailed(id, why)) = replies.recv().await else { panic!("no reply") };
    assert_eq!(id, large.instance);
    assert!(why.contains("larger than a packet"), "{why}");

    handle.start_instance(small.clone(), mailbox).unwrap();
    let (received, _peer) = receives.await.unwrap();
    assert_eq!(received, small.instance, "on the same connection");
    assert!(events.is_empty(), "the connection is not lost");
}

#[tokio::test]
async fn a_request_for_an_environment_reaches_the_launcher_as_it_was_made() {
    let (handle, mut messages) = crate::testing::launcher();
    let (mailbox, _inbox) = mailbox();
    for require_hashes in [true, false] {
        handle.prepare(EnvironmentRequest { require_hashes, ..request() }, &mailbox).unwrap();
        let Some(ToLauncher::Prepare { require_hashes: sent, python, .. }) = messages.recv().await else {
            panic!("another message")
        };
        assert_eq!((sent, python.as_str()), (require_hashes, "3.11"));
    }
}

/// Models and configuration of a launcher.
fn serves(models: &str, section: &str) -> Serves {
    Serves { models: models.to_owned(), config: serde_json::json!({"section": section}) }
}

/// Accepts the scheduler; reports what the launcher serves, and that it has scanned its models.
fn greet(listener: &UnixListener, served: Serves) -> UnixStream {
    let peer = listener.accept().unwrap().0;
    let welcome = FromLauncher::Welcome { protocol: VERSIONS.newest };
    for message in [welcome, FromLauncher::Serves(served), FromLauncher::Scanned] {
        send_packet(&peer, &message, &[]).unwrap();
    }
    peer
}

#[tokio::test]
async fn a_launcher_that_serves_the_right_models_is_used_after_one_that_did_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("launcher.sock");
    let listener = listener(&path);
    let (sender, mut events) = mpsc::channel(4);
    let expected = Some(serves("/models", "a"));
    let handle =
        LauncherHandle::start(path, expected, BTreeMap::new(), PreparationMetrics::default(), sender, heartbeat());
    let launcher = tokio::task::spawn_blocking(move || {
        let first = greet(&listener, serves("/others", "a"));
        // Read to its end: the scheduler has closed the connection.
        while recv_packet_no_fds::<ToLauncher>(&first).is_ok() {}
        greet(&listener, serves("/models", "a"))
    });
    assert!(matches!(events.recv().await, Some(LauncherEvent::Lost)));
    assert!(matches!(events.recv().await, Some(LauncherEvent::Scanned)));
    assert!(handle.connected());
    drop(launcher.await.unwrap());
}

/// A launcher that serves an older configuration is asked for nothing until it has restarted, or will not.
#[tokio::test]
async fn a_launcher_of_an_older_configuration_is_used_once_it_has_restarted_or_does_not() {
    for restarts in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("launcher.sock");
        let listener = listener(&path);
        let (sender, mut events) = mpsc::channel(4);
        let expected = Some(serves("/models", "new"));
        let metrics = PreparationMetrics::default();
        let handle = LauncherHandle::start(path, expected, BTreeMap::new(), metrics, sender, heartbeat());
        let connected = handle.connected.subscribe();
        let launcher = tokio::task::spawn_blocking(move || {
            let old = greet(&listener, serves("/models", "old"));
            loop {
                match recv_packet_no_fds(&old) {
                    Ok(ToLauncher::Renew) if restarts => break,
                    Ok(ToLauncher::Renew | ToLauncher::Hello { .. } | ToLauncher::KeptAll) => {}
                    Ok(other) => panic!("{other:?}"),
                    Err(_) => break, // it was given up
                }
            }
            assert!(!*connected.borrow());
            drop(old);
            greet(&listener, serves("/models", if restarts { "new" } else { "old" }))
        });
        assert!(matches!(events.recv().await, Some(LauncherEvent::Lost)), "the first scan is not passed on");
        assert!(matches!(events.recv().await, Some(LauncherEvent::Scanned)));
        assert!(handle.connected());
        drop(launcher.await.unwrap());
    }
}

/// The kernel accepts connections for a launcher that is being killed, until the last of it is gone.
#[tokio::test]
async fn a_launcher_is_connected_once_it_has_answered() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("launcher.sock");
    let listener = listener(&path);
    let (sender, mut events) = mpsc::channel(4);
    let handle = LauncherHandle::start(path, None, BTreeMap::new(), PreparationMetrics::default(), sender, heartbeat());
    let accepted = tokio::task::spawn_blocking(move || {
        let peer = listener.accept().unwrap().0;
        let _hello: ToLauncher = recv_packet_no_fds(&peer).unwrap();
        peer
    });
    let peer = accepted.await.unwrap();
    assert!(!handle.connected());
    send_packet(&peer, &FromLauncher::Scanned, &[]).unwrap();
    assert!(matches!(events.recv().await, Some(LauncherEvent::Scanned)));
    assert!(handle.connected());
}

/// Connects to a launcher with this protocol version and asks it for the files of weights: what it received, and the reply.
async fn weights_of(protocol: u32, names: Option<&'static str>) -> (Vec<ToLauncher>, Option<Vec<String>>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("launcher.sock");
    let listener = listener(&path);
    let (sender, mut events) = mpsc::channel(4);
    let handle = LauncherHandle::start(path, None, BTreeMap::new(), PreparationMetrics::default(), sender, heartbeat());
    let (stop, stopped) = std::sync::mpsc::sync_channel::<()>(0);
    let launcher = tokio::task::spawn_blocking(move || {
        let peer = listener.accept().unwrap().0;
        for message in [FromLauncher::Welcome { protocol }, FromLauncher::Scanned] {
            send_packet(&peer, &message, &[]).unwrap();
        }
        let mut asked = Vec::new();
        if protocol >= OPEN_WEIGHTS_SINCE {
            while asked.is_empty() {
                match recv_packet_no_fds(&peer).unwrap() {
                    ToLauncher::Hello { .. } | ToLauncher::KeptAll => {}
                    message => asked.push(message),
                }
            }
            let (snapshot, file) = (request().snapshot, tempfile::tempfile().unwrap());
            let files: &[_] = if names.is_some() { &[file.as_raw_fd()] } else { &[] };
            let names = names.map(|name| vec![name.to_owned()]);
            send_packet(&peer, &FromLauncher::WeightsFiles { snapshot, names }, files).unwrap();
        }
        let _ = stopped.recv();
        asked
    });
    assert!(matches!(events.recv().await, Some(LauncherEvent::Scanned)));
    let files = handle.open_weights(&request().snapshot, WeightsPlace::Fetched).unwrap().await.unwrap();
    drop(stop);
    (launcher.await.unwrap(), files.map(|files| files.keys().cloned().collect()))
}

#[tokio::test]
async fn files_of_weights_come_by_their_names() {
    let asked = vec![ToLauncher::OpenWeights { snapshot: request().snapshot, weights: WeightsPlace::Fetched }];
    let named = weights_of(VERSIONS.newest, Some("m.gguf")).await;
    assert_eq!(named, (asked.clone(), Some(vec!["m.gguf".to_owned()])));
    assert_eq!(weights_of(VERSIONS.newest, None).await, (asked, None), "they are not on the node");
}

#[tokio::test]
async fn a_launcher_of_an_earlier_release_is_asked_for_no_files_of_weights() {
    assert_eq!(weights_of(OPEN_WEIGHTS_SINCE - 1, None).await, (Vec::new(), None));
}
