//! Listening sockets of a node, which pass from a scheduler to its successor.

use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;

/// Listening sockets.
#[derive(Debug)]
pub struct Listeners {
    /// Data listener.
    pub data: TcpListener,
    /// Admin listener: health, metrics, capacity.
    pub admin: TcpListener,
    /// Control socket.
    pub control: UnixListener,
    /// Lock of the runtime directory, which at most one scheduler has.
    pub lock: File,
}

impl Listeners {
    /// Duplicates the descriptors of sockets and lock.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn try_clone(&self) -> io::Result<Self> {
        let (data, admin) = (self.data.try_clone()?, self.admin.try_clone()?);
        Ok(Self { data, admin, control: self.control.try_clone()?, lock: self.lock.try_clone()? })
    }
}
