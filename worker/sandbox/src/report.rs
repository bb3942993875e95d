//! Reports of the sandbox's own processes to the worker, over a socket that no model code ever holds.
//!
//! [`super::child`] and [`super::pid1`] write, the worker reads. The kernel adds the sender's process id, translated to
//! the worker's namespace: that is how the worker learns the engine's id.

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, SockaddrStorage, UnixCredentials, recvmsg,
    setsockopt, socketpair, sockopt,
};
use omni_engine_protocol::packet::{PacketError, send_packet};
use serde::{Deserialize, Serialize};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// The most that a report takes, in bytes.
const REPORT_MAX: usize = 8 * 1024;

/// Message to the worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Report {
    /// Something that the operator should know; the start goes on.
    Note(String),
    /// From the engine's process, as its last act before exec.
    Executing,
    /// A step failed; no model code has run, and none will.
    Failed(String),
    /// From pid 1: the engine's raw wait status. Pid 1 ends next, and everything with it, unless the engine is a zygote:
    /// then it stays while a process does.
    Ended(i32),
    /// From pid 1 of a zygote: another process than the zygote itself has ended.
    Orphan {
        /// As the sandbox numbers it.
        pid: i32,
        /// Raw wait status.
        status: i32,
    },
}

/// The worker's end of the socket.
#[derive(Debug)]
pub struct Reports(OwnedFd);

/// Both ends.
pub(super) fn channel() -> Result<(Reports, OwnedFd), Errno> {
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    setsockopt(&ours, sockopt::PassCred, &true)?;
    Ok((Reports(ours), theirs))
}

pub(super) fn send(socket: impl AsFd, report: &Report) -> Result<(), PacketError> {
    send_packet(socket, report, &[])
}

impl Reports {
    /// The next report with its sender's process id, without waiting: `None` when there is none yet.
    ///
    /// # Errors
    /// [`PacketError::Closed`] when all writers are gone.
    pub fn receive(&self) -> Result<Option<(i32, Report)>, PacketError> {
        let mut bytes = [0_u8; REPORT_MAX];
        let (length, pid) = loop {
            let mut iov = [IoSliceMut::new(&mut bytes)];
            let mut control = cmsg_space!(UnixCredentials);
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
            match recvmsg::<SockaddrStorage>(self.0.as_raw_fd(), &mut iov, Some(&mut control), flags) {
                Ok(received) => {
                    let pid = received.cmsgs()?.find_map(|message| match message {
                        ControlMessageOwned::ScmCredentials(credentials) => Some(credentials.pid()),
                        _ => None,
                    });
                    break (received.bytes, pid.unwrap_or_default());
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::ECONNRESET) => return Err(PacketError::Closed),
                Err(errno) => return Err(errno.into()),
            }
        };
        match bytes.get(..length) {
            None | Some([]) => Err(PacketError::Closed),
            Some(packet) => Ok(Some((pid, serde_json::from_slice(packet)?))),
        }
    }
}

impl AsFd for Reports {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}
