//! Input from the sandbox: the zygote's messages and output, and the reports of pid 1. Each is read a bounded amount
//! per round, parsed strictly, and turned into events for [`super::fork_queue`].

use super::Keeper;
use super::fork_queue::Event;
use crate::supervise::cause_of;
use crate::{log_line, shown};
use omni_engine_protocol::control::PERMANENT_FAILURE;
use omni_engine_protocol::packet::{MAX_PACKET, PacketError, recv_packet_no_fds};
use omni_log::chain;
use omni_node_protocol::instance::LogLine;
use omni_node_protocol::zygote::FromZygote;
use omni_sandbox::Report;

/// Reports of processes that are read in one round.
const REPORTS: usize = 256;

impl Keeper<'_> {
    /// Output of the zygote that was sent to no instance yet, as much as fits into a packet with any characters.
    pub(super) fn take_log(&mut self) -> Vec<LogLine> {
        self.read_output();
        let mut room = MAX_PACKET / 8;
        let mut news = Vec::new();
        while let Some(line) = self.journal.after(self.told) {
            let size = line.text.len() + 128;
            if size > room {
                break;
            }
            room -= size;
            self.told = line.seq;
            news.push(line.clone());
        }
        news
    }

    pub(super) fn hear_zygote(&mut self) {
        let Some(zygote) = &self.sockets.engine else { return };
        match recv_packet_no_fds::<FromZygote>(zygote) {
            Ok(FromZygote::Preloaded) if self.fork_queue.is_importing() => self.handle(Event::Preloaded),
            Ok(FromZygote::Preloaded) => self.spent("it broke its contract: it was preloaded already".into()),
            Ok(FromZygote::ForkFailed { instance, message }) => self.handle(Event::ForkFailed(instance, message)),
            Ok(FromZygote::Unusable { message }) => {
                // The instances' logs have more of it.
                let first = shown(message.lines().next().unwrap_or_default());
                log_line(&format!("the zygote in {} cannot be used: {first}", self.spec.sandbox.hostname));
                self.ended.get_or_insert(PERMANENT_FAILURE << 8);
                self.spent(message);
            }
            Err(error) if error.would_block() => {}
            Err(PacketError::Closed) => self.spent("it has ended".into()),
            Err(error) => self.spent(format!("it broke its contract: {}", chain(&error))),
        }
    }

    pub(super) fn read_reports(&mut self) {
        for _ in 0..REPORTS {
            match self.sandbox.reports.receive() {
                Ok(Some((pid, Report::Executing))) => {
                    self.zygote = Some(pid);
                    // Not before: the zygote has its group from it.
                    if let Err(error) = self.own.take(self.sandbox.pid.as_raw()) {
                        self.spent(format!("its first process cannot be moved: {error}"));
                    }
                }
                Ok(Some((_, Report::Ended(status)))) => {
                    self.ended.get_or_insert(status);
                    self.spent(format!("it has ended: {}", cause_of(status)));
                }
                Ok(Some((_, Report::Orphan { pid, status }))) => self.handle(Event::Ended(pid, status)),
                Ok(Some((_, Report::Failed(message)))) => self.spent(message),
                Ok(Some((_, Report::Note(note)))) => self.journal.note(note, self.moment()),
                Ok(None) => return,
                Err(_) => {
                    self.reporting = false;
                    return;
                }
            }
        }
    }

    pub(super) fn read_output(&mut self) {
        let now = self.moment();
        self.sockets.read_logs(&mut self.journal, now);
    }
}
