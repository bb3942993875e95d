//! Shutdown of the daemon.

use super::{Daemon, Ending, Signals};
use crate::announcement::withdraw;
use crate::service;
use omni_ingress::ListenerPhase;
use omni_log::Kind;
use omni_takeover::Listeners;
use std::time::Duration;

/// Time for connections to close after the models have ended.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

impl Daemon {
    /// Finishes open requests, and stops the models unless they are left to another scheduler.
    pub(super) async fn shut_down(self, ending: Ending, signals: &mut Signals) {
        let Self { node, directories, mut http, jobs, control, listeners, .. } = self;
        control.stop_accepting();
        // Clients are refused once the last descriptor of a socket is closed.
        let lock = listeners.map(|Listeners { lock, data: _, admin: _, control: _ }| lock);
        if ending != Ending::TakenOver {
            service::stopping();
        }
        let finish = async {
            if let Some(jobs) = jobs {
                jobs.close().await; // what is in flight waits for the next scheduler
            }
            http.data_phase.send_replace(ListenerPhase::Closing);
            let limit = match ending {
                Ending::Stop | Ending::Fault(_) => {
                    tracing::info!(message_id = Kind::Draining.id(), "draining");
                    node.shut_down().await;
                    CLOSE_TIMEOUT
                }
                Ending::Leave => {
                    tracing::info!("leaving the models to the next scheduler");
                    node.longest_drain() + CLOSE_TIMEOUT
                }
                Ending::TakenOver => CLOSE_TIMEOUT,
            };
            let _ = tokio::time::timeout(limit, async { while http.data.join_next().await.is_some() {} }).await;
            http.admin_phase.send_replace(ListenerPhase::Closing);
            if ending == Ending::TakenOver {
                let _ = tokio::time::timeout(CLOSE_TIMEOUT, http.admin).await;
            }
        };
        let models_end = matches!(ending, Ending::Stop | Ending::Fault(_));
        let is_forced = tokio::select! {
            () = finish => false,
            () = signals.stop() => true,
        };
        if is_forced && models_end {
            tracing::warn!("second stop signal: all models are killed, with their requests in flight");
            node.end_now().await;
        } else if is_forced {
            tracing::warn!("second stop signal while draining: the models keep running");
        }
        if models_end {
            withdraw(&directories);
        }
        node.store().flush().await; // before the next scheduler reads it
        drop(lock);
    }
}
