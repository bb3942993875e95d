//! The handle, with a launcher that the test plays.

use super::*;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use omni_config::node::NodeConfig;
use omni_engine_protocol::packet::{MAX_PACKET, recv_packet_no_fds, send_packet};
use omni_task::Watchdog;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::path::Path;

fn heartbeat() -> Heartbeat {
    Watchdog::default().heartbeat("launcher")
}

#[tokio::test]
async fn who_asks_a_launcher_that_is_not_there_is_told_at_once() {
    let (seen, _unread) = mpsc::channel(1);
    let handle = LauncherHandle::start(
        "/nonexistent/launcher.sock".into(),
        None,
        BTreeMap::new(),
        BuildMetrics::default(),
        seen,
        heartbeat(),
    );
    let name = ModelName::try_from("a".to_owned()).unwrap();
    let snapshot = SnapshotDigest::parse(&"0".repeat(64)).unwrap();
    let content = Content::parse(&name, snapshot.clone(), None, &NodeConfig::default()).unwrap();
    let (inbox, told) = mpsc::channel(4);
    assert_eq!(handle.prepare(&name, &content, &inbox), Err(LauncherError::Silent));
    let id = InstanceId::parse("0123456789ab").unwrap();
    let environment = omni_node_protocol::id::EnvironmentKey::parse(&"0".repeat(64)).unwrap();
    let spec = content.start_spec(&name, id.clone(), environment, &NodeConfig::default());
    assert_eq!(handle.start_instance(spec, &inbox), Err(LauncherError::Silent));
    assert!(told.is_empty(), "no answer comes beside");
}

/// Where a launcher listens that the test plays. The standard library's accepts any kind of Unix socket.
fn listener(path: &Path) -> UnixListener {
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(listener.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
    listen(&listener, Backlog::new(1).unwrap()).unwrap();
    listener.into()
}

/// A launcher of this or an earlier release, which the test plays: the first message that it receives, and the version
/// that it is reported with if that is an old one.
async fn greeted_by(protocol: u32) -> (ToLauncher, Option<u32>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("launcher.sock");
    let listener = listener(&path);
    let (seen, mut told) = mpsc::channel(4);
    let handle = LauncherHandle::start(path, None, BTreeMap::new(), BuildMetrics::default(), seen, heartbeat());
    let hello = tokio::task::spawn_blocking(move || {
        let peer = listener.accept().unwrap().0;
        let hello = recv_packet_no_fds(&peer).unwrap();
        for said in [FromLauncher::Welcome { protocol }, FromLauncher::Scanned] {
            send_packet(&peer, &said, &[]).unwrap();
        }
        (hello, peer)
    });
    assert!(matches!(told.recv().await, Some(Seen::Scanned)));
    let (hello, peer) = hello.await.unwrap();
    let spoken = handle.old_protocol();
    drop(peer);
    (hello, spoken)
}

#[tokio::test]
async fn a_launcher_of_an_earlier_release_is_reported() {
    let ours = ToLauncher::Hello { protocol: VERSIONS.newest, oldest: Some(VERSIONS.oldest) };
    assert_eq!(greeted_by(VERSIONS.newest - 1).await, (ours.clone(), Some(VERSIONS.newest - 1)));
    assert_eq!(greeted_by(VERSIONS.newest).await, (ours, None));
}

#[tokio::test]
async fn the_launcher_is_asked_to_require_hashes() {
    let name = ModelName::try_from("a".to_owned()).unwrap();
    let snapshot = SnapshotDigest::parse(&"0".repeat(64)).unwrap();
    let content = |manifest: &str| {
        Content::parse(&name, snapshot.clone(), Some(manifest.to_owned()), &NodeConfig::default()).unwrap()
    };
    let (requires, plain) = (content("[python]\nrequire-hashes = true\n"), content(""));
    let (handle, mut asked) = testing::launcher();
    let (inbox, _told) = mpsc::channel(1);
    for content in [&requires, &plain] {
        assert_eq!(handle.prepare(&name, content, &inbox), Ok(()));
    }
    let mut heard = Vec::new();
    while let Ok(ToLauncher::Prepare { require_hashes, .. }) = asked.try_recv() {
        heard.push(require_hashes);
    }
    assert_eq!(heard, [true, false]);
}

#[tokio::test]
async fn what_no_packet_holds_fails_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("launcher.sock");
    let listener = listener(&path);
    let (seen, mut told) = mpsc::channel(4);
    let handle = LauncherHandle::start(path, None, BTreeMap::new(), BuildMetrics::default(), seen, heartbeat());
    let hears = tokio::task::spawn_blocking(move || {
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
    assert!(matches!(told.recv().await, Some(Seen::Scanned)));
    let name = ModelName::try_from("a".to_owned()).unwrap();
    let snapshot = SnapshotDigest::parse(&"0".repeat(64)).unwrap();
    let content = Content::parse(&name, snapshot.clone(), None, &NodeConfig::default()).unwrap();
    let (inbox, mut answers) = mpsc::channel(4);

    let mut large = content.clone();
    large.manifest.runtime.interpreter = Some("/x".repeat(MAX_PACKET / 2).into());
    handle.prepare(&name, &large, &inbox).unwrap();
    let answer = answers.recv().await;
    assert!(matches!(answer, Some(Message::PrepareFailed { permanent: true, .. })), "{answer:?}");

    let environment = omni_node_protocol::id::EnvironmentKey::parse(&"0".repeat(64)).unwrap();
    let start = |id: &str| {
        content.start_spec(&name, InstanceId::parse(id).unwrap(), environment.clone(), &NodeConfig::default())
    };
    let (large, small) = (start("0123456789ab"), start("ba9876543210"));
    handle.start_instance(StartSpec { note: "x".repeat(MAX_PACKET), ..large.clone() }, &inbox).unwrap();
    let Some(Message::StartFailed(id, why)) = answers.recv().await else { panic!("no answer") };
    assert_eq!(id, large.instance);
    assert!(why.contains("larger than a packet"), "{why}");

    handle.start_instance(small.clone(), &inbox).unwrap();
    let (heard, _peer) = hears.await.unwrap();
    assert_eq!(heard, small.instance, "on the same connection");
    assert!(told.is_empty(), "nobody lost the launcher");
}

/// The kernel takes connections for a launcher that is being killed, until the last of it is gone.
#[tokio::test]
async fn a_launcher_is_asked_once_it_has_answered() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("launcher.sock");
    let listener = listener(&path);
    let (seen, mut told) = mpsc::channel(4);
    let handle = LauncherHandle::start(path, None, BTreeMap::new(), BuildMetrics::default(), seen, heartbeat());
    let accepted = tokio::task::spawn_blocking(move || {
        let peer = listener.accept().unwrap().0;
        let _hello: ToLauncher = recv_packet_no_fds(&peer).unwrap();
        peer
    });
    let peer = accepted.await.unwrap();
    assert!(!handle.connected());
    send_packet(&peer, &FromLauncher::Scanned, &[]).unwrap();
    assert!(matches!(told.recv().await, Some(Seen::Scanned)));
    assert!(handle.connected());
}
