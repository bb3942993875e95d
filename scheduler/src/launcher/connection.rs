//! The task that keeps the connection to the launcher: connects, tells it what it must know, carries both ways, and
//! again when it is lost. Spawned by [`LauncherHandle::start`]; nothing here waits for a launcher without a bound.

use super::{LauncherHandle, Seen};
use crate::packet_socket::PacketSocket;
use nix::errno::Errno;
use omni_engine_protocol::packet::PacketError;
use omni_node_protocol::id::InstanceId;
use omni_node_protocol::launcher::{FromLauncher, ToLauncher, VERSIONS};
use omni_task::Heartbeat;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Pause between tries to connect: first and longest.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));
/// A launcher that ends the connection sooner is not asked again at once: it may not understand this scheduler.
const STEADY: Duration = Duration::from_secs(1);

/// For the launcher to read what waits for it. Its keeper ends one that hangs, after a little longer.
const TAKES_WITHIN: Duration = Duration::from_secs(10);

pub(super) async fn keep(
    path: PathBuf,
    handle: LauncherHandle,
    mut commands: mpsc::Receiver<ToLauncher>,
    seen: mpsc::Sender<Seen>,
    heartbeat: Heartbeat,
) {
    let mut pause = RECONNECT.0;
    let mut warned = false;
    loop {
        match PacketSocket::connect(&path) {
            Ok(socket) => {
                warned = false;
                let begun = Instant::now();
                let kills = still_wanted(&mut commands, handle.unanswered());
                let ended = serve(&socket, &handle, kills, &mut commands, &seen, &heartbeat).await;
                let expected = {
                    let routes = handle.routes();
                    routes.quitting || routes.renewals > 0 || routes.foreign
                };
                if !expected {
                    tracing::warn!(
                        error = omni_log::chain(&ended),
                        "launcher lost: nothing can be started until it is back"
                    );
                }
                handle.lost(&seen).await;
                if begun.elapsed() > STEADY {
                    pause = RECONNECT.0;
                }
            }
            Err(error) => {
                if pause >= RECONNECT.1 && !warned {
                    warned = true;
                    tracing::warn!(socket = %path.display(), %error, "launcher does not answer: nothing can be started");
                }
            }
        }
        heartbeat.during(tokio::time::sleep(pause)).await;
        pause = (pause * 2).min(RECONNECT.1);
    }
}

/// What a launcher is told that comes after another one. Who asked the earlier one for something else was told that
/// there is no answer. Nobody will answer for its unanswered starts: `Kill` is always answered, and then the model
/// starts another instance.
fn still_wanted(commands: &mut mpsc::Receiver<ToLauncher>, unanswered: Vec<InstanceId>) -> Vec<ToLauncher> {
    let mut kills: Vec<ToLauncher> = unanswered.into_iter().map(|instance| ToLauncher::Kill { instance }).collect();
    while let Ok(command) = commands.try_recv() {
        match command {
            ToLauncher::Kill { .. } => kills.push(command),
            ToLauncher::Hello { .. }
            | ToLauncher::Keep { .. }
            | ToLauncher::KeptAll
            | ToLauncher::Prepare { .. }
            | ToLauncher::Unprepare { .. }
            | ToLauncher::Start(_)
            | ToLauncher::EndZygotes { .. }
            | ToLauncher::Renew
            | ToLauncher::Quit => {}
        }
    }
    kills
}

impl LauncherHandle {
    /// The launcher has answered, and serves what it should: it can be asked. A connection alone says nothing, as that of a
    /// launcher that is being killed is accepted by the kernel to the last.
    fn answers(&self) {
        self.connected.send_if_modified(|connected| !std::mem::replace(connected, true));
    }
}

async fn serve(
    socket: &PacketSocket,
    handle: &LauncherHandle,
    kills: Vec<ToLauncher>,
    commands: &mut mpsc::Receiver<ToLauncher>,
    seen: &mpsc::Sender<Seen>,
    heartbeat: &Heartbeat,
) -> PacketError {
    let keep = handle.routes().keep_all();
    handle.routes().spoken = None;
    let hello = ToLauncher::Hello { protocol: VERSIONS.newest, oldest: Some(VERSIONS.oldest) };
    for message in std::iter::once(hello).chain(keep).chain(kills) {
        if let Err(error) = send(socket, handle, message, seen).await {
            return error;
        }
    }
    loop {
        heartbeat.turn();
        tokio::select! {
            () = heartbeat.asked() => {}
            said = socket.receive() => match said {
                Ok(said) => {
                    let (is_welcome, is_served) =
                        (matches!(said, FromLauncher::Welcome { .. }), matches!(said, FromLauncher::Serves(_)));
                    // Before a word about a model: whoever hears that may ask at once.
                    if !is_welcome && !is_served {
                        handle.answers();
                    }
                    handle.route(said, seen).await;
                    if handle.routes().foreign {
                        return PacketError::Closed;
                    }
                    if is_served {
                        handle.answers();
                    }
                }
                Err(error) => return error,
            },
            () = handle.keeping.notified() => {
                let keep = handle.routes().keep_changed();
                for message in keep {
                    if let Err(error) = send(socket, handle, message, seen).await {
                        return error;
                    }
                }
            }
            command = commands.recv() => {
                let Some(command) = command else { return PacketError::Closed };
                if let Err(error) = send(socket, handle, command, seen).await {
                    return error;
                }
            }
        }
    }
}

/// A launcher that takes nothing for [`TAKES_WITHIN`] is as good as lost. A message that no packet holds is its sender's
/// failure alone: the connection is everybody's.
async fn send(
    socket: &PacketSocket,
    handle: &LauncherHandle,
    message: ToLauncher,
    seen: &mpsc::Sender<Seen>,
) -> Result<(), PacketError> {
    let sent = tokio::time::timeout(TAKES_WITHIN, socket.send(&message)).await;
    match sent.unwrap_or(Err(PacketError::Socket(Errno::ETIMEDOUT))) {
        Err(error @ PacketError::TooLarge(_)) => {
            let error = omni_log::chain(&error);
            tracing::error!(error, "the launcher is not told something");
            if let Some(answer) = refusal(message, error) {
                handle.route(answer, seen).await;
            }
            Ok(())
        }
        sent => sent,
    }
}

/// What the launcher would answer, to who waits for an answer.
fn refusal(unsent: ToLauncher, message: String) -> Option<FromLauncher> {
    match unsent {
        ToLauncher::Start(spec) => Some(FromLauncher::StartFailed { instance: spec.instance, message }),
        ToLauncher::Prepare { snapshot, .. } => {
            Some(FromLauncher::PrepareFailed { snapshot, message, permanent: true, after_ms: None })
        }
        ToLauncher::Hello { .. }
        | ToLauncher::Keep { .. }
        | ToLauncher::KeptAll
        | ToLauncher::Unprepare { .. }
        | ToLauncher::Kill { .. }
        | ToLauncher::EndZygotes { .. }
        | ToLauncher::Renew
        | ToLauncher::Quit => None,
    }
}
