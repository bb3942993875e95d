//! What a client's connection is made of: TCP as it comes, TLS over it, or a socket pair whose other end the scheduler
//! before this one has.
//!
//! [`super::listener`] makes one, [`super::connection`] reads and writes it. What always holds: only one that is TCP as it
//! comes can change hands, to a model or to a successor; the state of TLS is in this process alone.

use nix::libc;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::Linger;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

/// The kernel forgets what is not sent, instead of keeping it for a client that does not take it.
const RESET: libc::linger = libc::linger { l_onoff: 1, l_linger: 0 };

/// A connection.
#[derive(Debug)]
pub enum Stream {
    /// As it was accepted.
    Tcp(TcpStream),
    /// With TLS over it; boxed, since it is larger by far.
    Tls(Box<TlsStream<TcpStream>>),
    /// Over which an earlier scheduler asks again what it has taken.
    Asked {
        /// To it.
        stream: UnixStream,
        /// What comes was within its token's limits when that scheduler took it.
        admitted: bool,
    },
}

/// What it can do in each case.
trait Duplex: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Duplex for T {}

impl Stream {
    /// The same connection once more.
    pub(crate) fn duplicate(&self) -> io::Result<std::net::TcpStream> {
        match self {
            Self::Tcp(stream) => Ok(stream.as_fd().try_clone_to_owned()?.into()),
            Self::Tls(_) | Self::Asked { .. } => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// What is not sent yet is not wanted.
    pub(crate) fn forget_unsent(&self) {
        let client = match self {
            Self::Tcp(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
            Self::Asked { .. } => return, // the kernel keeps nothing for it
        };
        let _ = setsockopt(client, Linger, &RESET); // refused only by sockets that are closed already
    }

    /// What is below TLS, where nothing that comes is of use any more.
    pub(crate) fn beneath(self) -> Self {
        match self {
            Self::Tls(stream) => Self::Tcp(stream.into_inner().0),
            Self::Tcp(_) | Self::Asked { .. } => self,
        }
    }

    fn duplex(&mut self) -> Pin<&mut dyn Duplex> {
        Pin::new(match self {
            Self::Tcp(stream) => stream,
            Self::Tls(stream) => stream,
            Self::Asked { stream, .. } => stream,
        })
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.duplex().poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.duplex().poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.duplex().poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
            Self::Asked { stream, .. } => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.duplex().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.duplex().poll_shutdown(context)
    }
}
