//! Task of the connection to the launcher.
//!
//! ```text
//! connecting ── connected ──> greeting ── first report ──> answering
//!     ^                          │                             │
//!     ├──── connection lost ─────┼─────────────────────────────┘
//!     └──── connection lost ── renewing: the configuration differs
//! ```
//!
//! - connecting: tries again after a pause that grows to [`RECONNECT`]'s maximum.
//! - greeting: the launcher gets this scheduler's version, kept snapshots and pending kills. Requests are refused.
//! - renewing: the launcher was asked to restart with the newer configuration. What it reports by the older one is dropped:
//!   it reports everything again once it has restarted.
//! - answering: the launcher has reported something, and serves the expected models. Requests are sent.
//!
//! Nothing here waits for a launcher without a bound.

use crate::configuration::Use;
use crate::events::{LauncherEvent, ModelEvent};
use crate::handle::LauncherHandle;
use crate::metrics::PreparationMetrics;
use crate::routes::Routes;
use nix::errno::Errno;
use omni_config::name::ModelName;
use omni_engine_protocol::packet::PacketError;
use omni_node_protocol::id::{InstanceId, SnapshotDigest};
use omni_node_protocol::launcher::{BuildCounts, FromLauncher, Serves, ToLauncher, VERSIONS};
use omni_packet_socket::PacketSocket;
use omni_task::{Heartbeat, Mailbox};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Pause between attempts to connect: first and longest.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));
/// Duration of a connection after which the pause begins anew. A launcher that closes sooner may not understand this
/// scheduler, and is not connected again at once.
const STEADY: Duration = Duration::from_secs(1);
/// Bound on the time for the launcher to read a message. Its keeper ends one that hangs, after a little longer.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a launcher to restart with a newer configuration. One that nobody would start again goes on with its own.
const RENEWAL: Duration = Duration::from_secs(3);

impl LauncherHandle {
    /// Starts the task that keeps the connection to `<runtime-dir>/launcher.sock`. `expected`: models and configuration
    /// that the launcher must have been started with. `kept`: snapshots that models may return to.
    #[must_use]
    pub fn start(
        path: PathBuf,
        expected: Option<Serves>,
        kept: BTreeMap<ModelName, BTreeSet<SnapshotDigest>>,
        metrics: PreparationMetrics,
        events: mpsc::Sender<LauncherEvent>,
        heartbeat: Heartbeat,
    ) -> Self {
        let (handle, commands) = Self::new(Routes::new(expected, kept), metrics);
        let connected = handle.clone();
        heartbeat.spawn(async move |heartbeat| {
            let detached = Arc::clone(&connected.detached);
            tokio::select! {
                () = keep(path, connected, commands, events, heartbeat) => {}
                () = detached.notified() => {}
            }
        });
        handle
    }
}

/// Keeps the connection until the task is dropped.
async fn keep(
    path: PathBuf,
    handle: LauncherHandle,
    mut commands: mpsc::Receiver<ToLauncher>,
    events: mpsc::Sender<LauncherEvent>,
    heartbeat: Heartbeat,
) {
    let mut pause = RECONNECT.0;
    let mut warned = false;
    loop {
        match PacketSocket::connect(&path) {
            Ok(socket) => {
                warned = false;
                let begun = Instant::now();
                let kills = pending_kills(&mut commands, handle.routes().unanswered());
                let connection = Connection { socket, handle: &handle, events: &events };
                let error = connection.serve(kills, &mut commands, &heartbeat).await;
                let expected = {
                    let routes = handle.routes();
                    routes.quitting || routes.renewals > 0 || routes.foreign
                };
                if !expected {
                    tracing::warn!(
                        error = omni_log::chain(&error),
                        "launcher lost: nothing can be started until it is back"
                    );
                }
                on_lost(&handle, &events).await;
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

/// Kills that a new launcher is sent first. Models were told that their other requests to the earlier launcher are lost.
/// Unanswered starts are killed, too: a kill is always answered, and then the model starts another instance.
fn pending_kills(commands: &mut mpsc::Receiver<ToLauncher>, unanswered: Vec<InstanceId>) -> Vec<ToLauncher> {
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
            | ToLauncher::OpenFiles { .. }
            | ToLauncher::OpenWeights { .. }
            | ToLauncher::Renew
            | ToLauncher::Quit => {}
        }
    }
    kills
}

/// Tells the node, and all models that wait for an environment, that no reply will come.
async fn on_lost(handle: &LauncherHandle, events: &mpsc::Sender<LauncherEvent>) {
    handle.connected.send_replace(false);
    handle.metrics.set_builds(BuildCounts::default(), BuildCounts::default());
    handle.routes().clear_openings();
    let preparing = std::mem::take(&mut handle.routes().preparing);
    for mailbox in preparing.into_values().flatten() {
        mailbox.send(ModelEvent::Lost).await;
    }
    let _ = events.send(LauncherEvent::Lost).await;
}

/// Connection to a launcher.
struct Connection<'a> {
    socket: PacketSocket,
    handle: &'a LauncherHandle,
    events: &'a mpsc::Sender<LauncherEvent>,
}

impl Connection<'_> {
    /// Greets the launcher and carries messages both ways until the connection ends. Returns why it has ended.
    async fn serve(
        &self,
        kills: Vec<ToLauncher>,
        commands: &mut mpsc::Receiver<ToLauncher>,
        heartbeat: &Heartbeat,
    ) -> PacketError {
        let keep = self.handle.routes().keep_all();
        self.handle.routes().version = None;
        let hello = ToLauncher::Hello { protocol: VERSIONS.newest, oldest: Some(VERSIONS.oldest) };
        for message in std::iter::once(hello).chain(keep).chain(kills) {
            if let Err(error) = self.send(message).await {
                return error;
            }
        }
        loop {
            heartbeat.turn();
            tokio::select! {
                () = heartbeat.asked() => {}
                message = self.socket.receive_with() => match message {
                    Ok((FromLauncher::Files { snapshot, names }, files)) => {
                        self.handle.routes().on_files(&snapshot, names, files);
                    }
                    Ok((FromLauncher::WeightsFiles { snapshot, names }, files)) => {
                        self.handle.routes().on_weights_files(&snapshot, names, files);
                    }
                    Ok((FromLauncher::Welcome { protocol }, _)) => self.handle.routes().version = Some(protocol),
                    Ok((FromLauncher::Serves(served), _)) => match self.handle.compare(&served) {
                        Use::Serves => self.on_answer(),
                        Use::Renew => return self.renew(heartbeat).await,
                        Use::Foreign => return PacketError::Closed,
                    },
                    Ok((report, _)) => self.on_report(report).await,
                    Err(error) => return error,
                },
                () = self.handle.keep_changed.notified() => {
                    let keep = self.handle.routes().keep_changed();
                    for message in keep {
                        if let Err(error) = self.send(message).await {
                            return error;
                        }
                    }
                }
                command = commands.recv() => {
                    let Some(command) = command else { return PacketError::Closed };
                    if let Err(error) = self.send(command).await {
                        return error;
                    }
                }
            }
        }
    }

    /// Sends a message. A launcher that reads nothing for [`SEND_TIMEOUT`] counts as lost. A message larger than a packet
    /// fails alone: all models share the connection.
    async fn send(&self, message: ToLauncher) -> Result<(), PacketError> {
        let sent = tokio::time::timeout(SEND_TIMEOUT, self.socket.send(&message)).await;
        match sent.unwrap_or(Err(PacketError::Socket(Errno::ETIMEDOUT))) {
            Err(error @ PacketError::TooLarge(_)) => {
                let error = omni_log::chain(&error);
                tracing::error!(error, "a message to the launcher cannot be sent");
                if let Some(refusal) = refusal(message, error) {
                    self.dispatch(refusal).await;
                }
                Ok(())
            }
            sent => sent,
        }
    }

    /// Has the launcher restart with the newer configuration, and drops what it reports until then.
    async fn renew(&self, heartbeat: &Heartbeat) -> PacketError {
        let ended = async {
            if let Err(error) = self.send(ToLauncher::Renew).await {
                return error;
            }
            loop {
                if let Err(error) = self.socket.receive_with::<FromLauncher>().await {
                    return error;
                }
            }
        };
        heartbeat.during(tokio::time::timeout(RENEWAL, ended)).await.unwrap_or_else(|_| {
            self.handle.not_renewed();
            PacketError::Closed
        })
    }

    /// Handles a report of the launcher, which counts as connected from the first one on: a connection alone proves
    /// nothing, as the kernel accepts for a launcher that is being killed until the last of it is gone.
    async fn on_report(&self, report: FromLauncher) {
        // Before the report reaches a model, which may make a request at once.
        self.on_answer();
        self.dispatch(report).await;
    }

    fn on_answer(&self) {
        self.handle.connected.send_if_modified(|connected| !std::mem::replace(connected, true));
    }

    /// Passes a report on to the model that waits for it, or to the node.
    async fn dispatch(&self, report: FromLauncher) {
        match report {
            // Handled by the connection itself.
            FromLauncher::Welcome { .. }
            | FromLauncher::Serves(_)
            | FromLauncher::Files { .. }
            | FromLauncher::WeightsFiles { .. } => {}
            FromLauncher::Model { name, snapshot, manifest } => {
                self.notify(LauncherEvent::Model { name, snapshot, manifest }).await;
            }
            FromLauncher::ModelRefused { name, message, no_model } => {
                self.notify(LauncherEvent::Refused { name, message, no_model }).await;
            }
            FromLauncher::ModelGone { name } => self.notify(LauncherEvent::Gone { name }).await,
            FromLauncher::Scanned => {
                if self.handle.old_protocol().is_some() {
                    let hint = "it goes on; SIGUSR2 has the next one take over";
                    tracing::warn!("the launcher is of an earlier release: {hint}");
                }
                self.notify(LauncherEvent::Scanned).await;
            }
            FromLauncher::Progress { snapshot, line } => {
                let waiting = self.handle.routes().waiting(&snapshot);
                for mailbox in waiting {
                    mailbox.try_send(ModelEvent::BuildLine(snapshot.clone(), line.clone()));
                }
            }
            FromLauncher::Build { snapshot, stage } => {
                let waiting = self.handle.routes().waiting(&snapshot);
                send_all(waiting, || ModelEvent::BuildStage(snapshot.clone(), stage.clone())).await;
            }
            FromLauncher::Weights { snapshot, stage } => {
                let waiting = self.handle.routes().waiting(&snapshot);
                send_all(waiting, || ModelEvent::WeightsStage(snapshot.clone(), stage)).await;
            }
            FromLauncher::Builds { wheels, source } => self.handle.metrics.set_builds(wheels, source),
            FromLauncher::WeightsCounts(counts) => self.handle.metrics.set_weights(counts),
            FromLauncher::Prepared { snapshot, environment } => {
                let waiting = self.handle.routes().take_waiting(&snapshot);
                send_all(waiting, || ModelEvent::Prepared(snapshot.clone(), environment.clone())).await;
            }
            FromLauncher::PrepareFailed { snapshot, message, permanent, after_ms } => {
                self.on_prepare_failed(&snapshot, &message, permanent, after_ms.map(Duration::from_millis)).await;
            }
            FromLauncher::Started { instance, worker_pid: _ } => self.on_started(instance).await,
            FromLauncher::Runs { instance } => {
                if !self.handle.routes().instances.contains_key(&instance) {
                    self.notify(LauncherEvent::UnknownInstance { instance }).await;
                }
            }
            FromLauncher::StartFailed { instance, message } => {
                let route = self.handle.routes().instances.remove(&instance);
                if let Some(route) = route {
                    route.mailbox.send(ModelEvent::StartFailed(instance, message)).await;
                }
            }
            FromLauncher::WorkerGone { instance, cause } => {
                let route = self.handle.routes().instances.remove(&instance);
                let Some(route) = route else { return };
                // An unanswered start was requested from an earlier launcher, which may have begun it.
                let event = if route.requested {
                    ModelEvent::StartNotRequested(instance)
                } else {
                    ModelEvent::WorkerExited(instance, cause)
                };
                route.mailbox.send(event).await;
            }
        }
    }

    async fn on_prepare_failed(
        &self,
        snapshot: &SnapshotDigest,
        message: &str,
        permanent: bool,
        after: Option<Duration>,
    ) {
        let waiting = self.handle.routes().take_waiting(snapshot);
        let event = || {
            let (snapshot, message) = (snapshot.clone(), message.to_owned());
            ModelEvent::PrepareFailed { snapshot, message, permanent, after }
        };
        send_all(waiting, event).await;
    }

    async fn on_started(&self, instance: InstanceId) {
        let mailbox = self.handle.routes().instances.get_mut(&instance).map(|route| {
            route.requested = false;
            route.mailbox.clone()
        });
        match mailbox {
            Some(mailbox) => mailbox.send(ModelEvent::WorkerStarted(instance)).await,
            None => self.notify(LauncherEvent::UnknownInstance { instance }).await,
        }
    }

    /// Sends an event to the node.
    async fn notify(&self, event: LauncherEvent) {
        let _ = self.events.send(event).await;
    }
}

async fn send_all(mailboxes: Vec<Mailbox<ModelEvent>>, event: impl Fn() -> ModelEvent) {
    for mailbox in mailboxes {
        mailbox.send(event()).await;
    }
}

/// Reply to a message that cannot be sent, for those that are answered.
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
        | ToLauncher::OpenFiles { .. }
        | ToLauncher::OpenWeights { .. }
        | ToLauncher::Renew
        | ToLauncher::Quit => None,
    }
}
