//! The main loop's part in the life of zygotes: begun with the first instance of a generation that wants one, swept up
//! after, ended with the node. Nothing here can fail an instance: without a zygote it starts alone.

use super::Launcher;
use crate::event::Event;
use crate::reap::reap_groups;
use crate::running::Running;
use crate::start::Start;
use crate::zygotes::{Generation, ZygoteStart, bound, groups};
use nix::sys::signal::Signal;
use omni_log::chain;
use omni_node_protocol::exit::ExitCause;
use omni_node_protocol::id::InstanceId;
use omni_process::pidfd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How long a zygote that is ended with its launcher may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(2);

impl Launcher {
    /// Begins the zygote of a generation, named by the instance that it is begun for, whose user id it shares. Its socket,
    /// at which callers may wait from now on; `None` where it is better not to try.
    pub(super) fn begin_zygote(&mut self, start: &Start, generation: Generation) -> Option<PathBuf> {
        if !self.zygotes.may_begin(&generation, Instant::now()) {
            return None;
        }
        let id = start.spec.instance.clone();
        let socket = self.zygote_dir.socket(&id);
        let listener = bound(&self.zygote_dir, &id)
            .inspect_err(|error| tracing::warn!(zygote = %id, %error, "the socket of a zygote cannot be made"))
            .ok()?;
        let mut start = start.clone();
        start.context.runtime_dir = self.zygote_dir.clone();
        let (uid, set) = (start.uid, start.set.clone());
        let (driver, zygote_dir, events) =
            (Arc::clone(&self.context.driver), self.zygote_dir.clone(), self.threads.events.clone());
        let (new, job) = (id.clone(), ZygoteStart { start, generation: generation.clone(), listener });
        let run = move || {
            let result = job.run().map_err(|error| {
                // With its socket the callers that wait there lose their connection, and start alone.
                reap_groups(&groups(&new), &new, None, &*driver, &zygote_dir);
                chain(&error)
            });
            // A main loop that is gone leaves the zygote to the next one.
            let _ = events.send(Event::ZygoteStarted { id: new, result });
        };
        match thread::Builder::new().name("zygote".into()).spawn(run) {
            Ok(_) => {
                self.instances.uids.share(uid);
                self.zygotes.begin(id, generation, set, uid);
                Some(socket)
            }
            Err(error) => {
                tracing::warn!(zygote = %id, %error, "the node cannot start a thread for a zygote");
                let _ = self.zygote_dir.remove(&id); // what is left is an unused socket
                None
            }
        }
    }

    pub(super) fn on_zygote_started(&mut self, id: &InstanceId, result: Result<Running, String>) {
        match result {
            Ok(running) => {
                tracing::info!(zygote = %id, pid = running.pid.as_raw(), "a zygote is started");
                self.zygotes.started(id, running);
            }
            Err(message) => {
                tracing::warn!(zygote = %id, reason = message, "a zygote could not be started");
                self.on_zygote_gone(id, &ExitCause::StartFailed { message });
            }
        }
    }

    pub(super) fn on_zygote_end(&mut self, id: InstanceId) {
        let Some(running) = self.zygotes.ending(&id) else { return };
        let (driver, zygote_dir) = (Arc::clone(&self.context.driver), self.zygote_dir.clone());
        self.reap(move || {
            let cause = reap_groups(&groups(&id), &id, Some(running.pid), &*driver, &zygote_dir);
            Event::ZygoteGone { id, cause }
        });
    }

    pub(super) fn on_zygote_gone(&mut self, id: &InstanceId, cause: &ExitCause) {
        tracing::info!(zygote = %id, %cause, "a zygote is gone");
        if let Some(uid) = self.zygotes.end(id, cause, Instant::now()) {
            self.instances.uids.give_back(uid);
        }
        self.sweep_snapshots();
    }

    /// The node ends, and no instance is left: neither is a reason for a zygote.
    pub(super) fn kill_zygotes(&mut self) {
        self.zygotes.dismiss();
        for (id, pidfd, _) in self.zygotes.running() {
            if let Err(errno) = pidfd::send_signal(pidfd, Signal::SIGKILL) {
                tracing::debug!(zygote = %id, %errno, "a zygote had ended already");
            }
        }
    }

    /// The room of a model's zygotes is needed, and no instance has come from them for now.
    pub(super) fn end_idle_zygotes_of(&mut self, model: &str) {
        let uids = &self.instances.uids;
        for (id, pidfd) in self.zygotes.dismiss_those(model, |uid| uids.users(uid) == 1) {
            tracing::info!(zygote = %id, model, "a zygote without instances is ended: its room is needed");
            if let Err(errno) = pidfd::send_signal(pidfd, Signal::SIGKILL) {
                tracing::debug!(zygote = %id, %errno, "a zygote had ended already");
            }
        }
    }

    /// The launcher ends and leaves instances as they are: a zygote without any has nothing to stay for.
    pub(super) fn end_idle_zygotes(&self) {
        for (id, pidfd, _) in self.zygotes.running().filter(|(_, _, uid)| self.instances.uids.users(*uid) == 1) {
            let killed = pidfd::send_signal(pidfd, Signal::SIGKILL);
            if killed.is_ok() && pidfd::readable_before(pidfd, Instant::now() + GONE_WITHIN).unwrap_or(false) {
                reap_groups(&groups(id), id, None, &*self.context.driver, &self.zygote_dir);
            }
        }
    }
}
