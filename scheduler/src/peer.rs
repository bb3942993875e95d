//! Who is at the other end of a Unix socket, as the kernel says: the control socket asks for each connection.
//!
//! What always holds: user and groups are those of the moment at which the other side connected, so that a process which
//! passes its connection on, or gives up a privilege, changes nothing of it.
#![allow(unsafe_code, reason = "SO_PEERGROUPS is not in nix")]

use crate::policy::control::Peer;
use nix::errno::Errno;
use nix::libc::{SO_PEERGROUPS, SOL_SOCKET, getsockopt, gid_t, socklen_t};
use nix::sys::socket::{getsockopt as get, sockopt::PeerCredentials};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Groups of most callers; who has more is asked once more.
const USUAL: usize = 64;

/// The other end.
///
/// # Errors
/// It is no connected Unix socket.
pub fn of(socket: &impl AsFd) -> io::Result<Peer> {
    let credentials = get(socket, PeerCredentials)?;
    let mut groups = vec![credentials.gid()];
    groups.extend(supplementary(socket)?);
    Ok(Peer { uid: credentials.uid(), groups })
}

fn supplementary(socket: &impl AsFd) -> io::Result<Vec<gid_t>> {
    let size = size_of::<gid_t>();
    let mut groups: Vec<gid_t> = vec![0; USUAL];
    for _ in 0..2 {
        let mut length = socklen_t::try_from(groups.len() * size).unwrap_or(socklen_t::MAX);
        // SAFETY: `groups` has `length` bytes that may be written, `length` is a value of ours, and both outlive the call;
        // any bits are a number.
        let got = unsafe {
            getsockopt(
                socket.as_fd().as_raw_fd(),
                SOL_SOCKET,
                SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let count = usize::try_from(length).unwrap_or_default() / size;
        match Errno::result(got) {
            Ok(_) => {
                groups.truncate(count);
                return Ok(groups);
            }
            // It says how much there is, which does not change any more.
            Err(Errno::ERANGE) => groups.resize(count, 0),
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(Errno::ERANGE.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::{getegid, geteuid, getgroups};
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_other_end_is_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = of(&one).unwrap();
        let groups: Vec<u32> = getgroups().unwrap().into_iter().map(|group| group.as_raw()).collect();
        assert_eq!(
            (peer.uid, peer.groups[0], &peer.groups[1..]),
            (geteuid().as_raw(), getegid().as_raw(), &groups[..])
        );
        of(&std::fs::File::open("/dev/null").unwrap()).unwrap_err();
    }
}
