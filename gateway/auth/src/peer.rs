//! Credentials of the peer of a Unix socket, as the kernel reports them.
//!
//! Invariant: user and groups are those of the moment at which the peer connected. A process that passes its connection on, or
//! gives up a privilege, does not change them.
#![allow(unsafe_code, reason = "SO_PEERGROUPS is not in nix")]

use crate::access::Peer;
use nix::errno::Errno;
use nix::libc::{SO_PEERGROUPS, SOL_SOCKET, getsockopt, gid_t, socklen_t};
use nix::sys::socket::{getsockopt as get, sockopt::PeerCredentials};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Supplementary groups that there is room for at first; a peer with more takes a second call.
const USUAL_GROUPS: usize = 64;

/// The credentials of the peer.
///
/// # Errors
/// The descriptor is not a connected Unix socket.
pub fn peer_credentials(socket: &impl AsFd) -> io::Result<Peer> {
    let credentials = get(socket, PeerCredentials)?;
    let mut groups = vec![credentials.gid()];
    groups.extend(supplementary(socket)?);
    Ok(Peer { uid: credentials.uid(), groups })
}

fn supplementary(socket: &impl AsFd) -> io::Result<Vec<gid_t>> {
    let size = size_of::<gid_t>();
    let mut groups: Vec<gid_t> = vec![0; USUAL_GROUPS];
    for _ in 0..2 {
        let mut length = socklen_t::try_from(groups.len() * size).unwrap_or(socklen_t::MAX);
        // SAFETY: `groups` has `length` bytes that may be written, `length` is a local value, and both outlive the call;
        // any bits are a valid number.
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
            // The kernel has stored the needed length, which cannot change any more.
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
    fn credentials_are_those_of_the_peer() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = peer_credentials(&one).unwrap();
        let groups: Vec<u32> = getgroups().unwrap().into_iter().map(|group| group.as_raw()).collect();
        assert_eq!(
            (peer.uid, peer.groups[0], &peer.groups[1..]),
            (geteuid().as_raw(), getegid().as_raw(), &groups[..])
        );
        peer_credentials(&std::fs::File::open("/dev/null").unwrap()).unwrap_err();
    }
}
