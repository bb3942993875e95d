//! Life of the daemon after the set-up: build, serve, hand over, shut down.
//!
//! ```text
//! build ─▶ serving ──────────────── SIGTERM, SIGINT, failure of the single model ─▶ drain, stop the models ─▶ end
//!            │  ▲  └─────────────── SIGUSR2 ─▶ finish open requests, leave the models to the next scheduler ─▶ end
//!            │  └─ no successor
//!            └─ `omnictl upgrade`, SIGHUP ─▶ handing over ─▶ finish open requests ──────────────────────────▶ end
//! ```
//!
//! Serving: requests are answered. Draining: requests in flight are finished, new ones are refused. Handing over: a successor is started
//! and gets the models.
//!
//! On a terminal, SIGHUP means that the terminal was closed, and stops the node. A stop during a hand-over is passed on to the scheduler
//! that gets the models. A second SIGTERM or SIGINT while draining kills all models, or ends this process at once where they keep running.
//! The failure of a single model sets the exit code.

mod build;
mod control;
mod handing_over;
mod listener_configs;
mod shutdown;

use self::control::ControlServer;
use crate::args::Directories;
use crate::service::{self, StatusLine};
use crate::single::{SingleEvent, SingleModelWatch};
use omni_admin::control::Addresses;
use omni_config::node::NodeConfig;
use omni_config::tokens::Token;
use omni_ingress::ListenerPhase;
use omni_ingress::tls::Tls;
use omni_jobs_executor::JobsService;
use omni_policy::single::Fault;
use omni_supervisor::node::Node;
use omni_takeover::Listeners;
use omni_takeover::{self as takeover, Predecessor, UpgradeReply};
use omni_traces::ExportSettings;
use omni_usage::UsageSink;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

/// Limit of connections to the admin listener. The control socket has the same limit for readers, and again for writers.
const ADMIN_CONNECTIONS: u32 = 64;

/// Servers that get what is recorded of requests.
#[derive(Debug)]
pub struct Sinks {
    /// Where records of usage are handed over; `None`: nowhere.
    pub usage: Option<UsageSink>,
    /// Where spans are delivered; `None`: nowhere.
    pub spans: Option<ExportSettings>,
}

/// Configuration and sockets that the daemon starts with.
#[derive(Debug)]
pub struct Start {
    /// The node's configuration.
    pub config: NodeConfig,
    /// Directories of the node.
    pub directories: Directories,
    /// Group that may change the node, by number and name.
    pub admins: Option<(u32, String)>,
    /// Tokens of the data listener, by name; `None`: none is required.
    pub tokens: Option<BTreeMap<String, Token>>,
    /// Certificate of the data listener; `None`: plain HTTP.
    pub tls: Option<Tls>,
    /// Servers that get what is recorded of requests.
    pub sinks: Sinks,
    /// Listening sockets, and the lock.
    pub listeners: Listeners,
    /// Program of a successor: the path of the running one.
    pub program: PathBuf,
    /// Scheduler that serves until this one does.
    pub predecessor: Option<Predecessor>,
}

/// Cause of the daemon's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Stop: drain, then stop the models.
    Stop,
    /// End that leaves the running models to the next scheduler.
    Leave,
    /// Takeover by a successor.
    TakenOver,
    /// Failure of the single model: drain and stop, as for `Stop`.
    Fault(Fault),
}

/// Signals of the process.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    leave: Signal,
    reload: Signal,
}

/// The serving daemon.
struct Daemon {
    node: Arc<Node>,
    directories: Directories,
    addresses: Addresses,
    program: PathBuf,
    /// Summary of the configuration, which a successor compares with its own.
    config_summary: Value,
    http: HttpServers,
    /// Batch jobs; `None`: the node takes none.
    jobs: Option<JobsService>,
    control: ControlServer,
    /// Sockets and lock for a successor; `None` once it has them.
    listeners: Option<Listeners>,
    upgrades: Upgrades,
    readiness: Readiness,
    status_line: StatusLine,
}

/// The HTTP listeners.
struct HttpServers {
    data_phase: watch::Sender<ListenerPhase>,
    /// Phase of the admin listener, which serves monitoring while the node drains.
    admin_phase: watch::Sender<ListenerPhase>,
    data: JoinSet<()>,
    admin: JoinHandle<()>,
    /// Limit of connections to the data listener.
    connections: usize,
}

/// Requests for a takeover.
struct Upgrades {
    sender: mpsc::Sender<UpgradeReply>,
    receiver: mpsc::Receiver<UpgradeReply>,
    /// Request of a SIGHUP, until it is accepted or refused.
    reload: JoinSet<Result<(), String>>,
}

/// Readiness of the service.
struct Readiness {
    single: SingleModelWatch,
    /// Readiness was notified, or another process notifies it.
    is_ready: bool,
}

/// Serves until a signal ends the daemon, a successor has taken over, or the single model has failed. Returns the fault of the model.
///
/// # Errors
/// The runtime refuses a socket or a signal handler, or a takeover has failed half-way.
pub async fn run(start: Start) -> io::Result<Option<Fault>> {
    let mut signals = Signals::register()?;
    let mut daemon = Daemon::build(start).await?;
    let ending = daemon.serve(&mut signals).await?;
    daemon.shut_down(ending, &mut signals).await;
    Ok(match ending {
        Ending::Fault(fault) => Some(fault),
        Ending::Stop | Ending::Leave | Ending::TakenOver => None,
    })
}

impl Signals {
    fn register() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            leave: signal(SignalKind::user_defined2())?,
            reload: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for SIGTERM or SIGINT.
    async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

impl Daemon {
    /// Serves until an event ends the daemon.
    async fn serve(&mut self, signals: &mut Signals) -> io::Result<Ending> {
        loop {
            tokio::select! {
                _ = signals.terminate.recv() => return Ok(Ending::Stop),
                _ = signals.interrupt.recv() => return Ok(Ending::Stop),
                _ = signals.leave.recv() => return Ok(Ending::Leave),
                event = self.readiness.single.next() => match event {
                    SingleEvent::Ready => self.readiness.notify(),
                    SingleEvent::Fault(fault) => return Ok(Ending::Fault(fault)),
                },
                _ = signals.reload.recv() => {
                    if io::stderr().is_terminal() {
                        return Ok(Ending::Stop);
                    }
                    self.reload();
                }
                Some(requested) = self.upgrades.reload.join_next() => {
                    if let Ok(Err(reason)) = requested {
                        tracing::error!("no reload: {reason}");
                        self.readiness.notify_again();
                    }
                }
                _ = self.control.checks.tick() => {
                    self.status_line.update(&self.addresses.listen, &self.node);
                    if let Some(second) = self.control.rebind_if_removed()
                        && let Some(listeners) = &mut self.listeners
                    {
                        listeners.control = second;
                    }
                }
                Some(reply) = self.upgrades.receiver.recv() => {
                    if let Some(ending) = self.hand_over(reply, signals).await? {
                        return Ok(ending);
                    }
                }
            }
        }
    }

    /// Requests a takeover for a SIGHUP, unless one is being requested.
    fn reload(&mut self) {
        service::reloading();
        if self.upgrades.reload.is_empty() {
            let (node, upgrades) = (Arc::clone(&self.node), self.upgrades.sender.clone());
            self.upgrades.reload.spawn(async move { takeover::request(&node, &upgrades).await.map(drop) });
        }
    }
}

impl Readiness {
    /// Notifies the service manager, once.
    fn notify(&mut self) {
        if !self.is_ready {
            self.is_ready = true;
            service::ready();
        }
    }

    /// Notifies the service manager that a reload has ended without a takeover.
    fn notify_again(&self) {
        if self.is_ready {
            service::ready();
        }
    }
}
