//! Takeover by a successor, on the side of the daemon that serves.

use super::{Daemon, Ending, Signals};
use crate::service;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use omni_supervisor::node::Ownership;
use omni_takeover::{self as takeover, Handover, Listeners, UpgradeReply, hand_over};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

impl Daemon {
    /// Hands the node over to a successor, and returns the ending of this daemon; `None`: there is no successor, and this scheduler keeps
    /// serving.
    pub(super) async fn hand_over(&mut self, reply: UpgradeReply, signals: &mut Signals) -> io::Result<Option<Ending>> {
        let listeners = match self.listeners.as_ref().map(Listeners::try_clone) {
            Some(Ok(listeners)) => listeners,
            None => return Ok(None), // a successor has them
            Some(Err(error)) => {
                let error = format!("no takeover: the listening sockets cannot be duplicated: {error}");
                tracing::error!("{error}");
                service::ready();
                let _ = reply.send(Err(error));
                return Ok(None);
            }
        };
        let Self { node, program, config_summary, http, control, listeners: own_listeners, upgrades, .. } = self;
        let handover = Handover {
            node,
            config: config_summary,
            listeners,
            data: &http.data_phase,
            admin: &http.admin_phase,
            connections: http.connections,
        };
        let all_answered = async {
            while http.data.join_next().await.is_some() {}
            control.connections.close().await;
        };
        let stop_requested = AtomicBool::new(false);
        let unnotified = Arc::new(AtomicU32::new(0));
        let handed_over = hand_over(program, handover, all_answered, |result| {
            match &result {
                Ok(successor) => {
                    service::main_pid(successor.pid);
                    if stop_requested.load(Ordering::Relaxed) {
                        stop(successor.pid);
                    }
                    note_until_notified(successor.pid, &unnotified);
                    control.stop_accepting(); // new connections are for the successor
                    upgrades.receiver.close();
                    while let Ok(late) = upgrades.receiver.try_recv() {
                        let _ = late.send(Err(takeover::ALREADY_REQUESTED.to_owned()));
                    }
                    // Only the successor has the lock then: when it ends, another scheduler can be started.
                    *own_listeners = None;
                }
                Err(_) => service::ready(),
            }
            let _ = reply.send(result); // fails when the caller is gone
        });
        let mut handed_over = pin!(handed_over);
        loop {
            tokio::select! {
                done = &mut handed_over => {
                    return Ok(done.map_err(io::Error::other)?.then_some(Ending::TakenOver));
                }
                () = signals.stop() => {}
            }
            match node.ownership() {
                Ownership::Own => return Ok(Some(Ending::Stop)),
                Ownership::InTransit => {
                    tracing::info!("stop during a hand-over: the scheduler that gets the models is stopped");
                    stop_requested.store(true, Ordering::Relaxed);
                }
                Ownership::Successor => match unnotified.load(Ordering::Relaxed) {
                    0 => return Ok(Some(Ending::TakenOver)),
                    successor => stop(successor),
                },
            }
        }
    }
}

/// Keeps the successor's pid in `unnotified` until the service manager has processed its notification: until then the manager stops the
/// service by this process.
fn note_until_notified(successor: u32, unnotified: &Arc<AtomicU32>) {
    if service::is_managed() {
        unnotified.store(successor, Ordering::Relaxed);
        let unnotified = Arc::clone(unnotified);
        tokio::spawn(async move {
            service::barrier().await;
            unnotified.store(0, Ordering::Relaxed);
        });
    }
}

/// Stops the successor, and all models with it.
fn stop(successor: u32) {
    if let Err(errno) = kill(Pid::from_raw(successor.cast_signed()), Signal::SIGTERM) {
        tracing::warn!(%errno, "the successor cannot be stopped");
    }
}
