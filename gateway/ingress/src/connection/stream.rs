//! Byte stream of a client: plain TCP, TLS over it, or a socket pair whose other end the predecessor has.
//!
//! Invariant: only plain TCP can be given to a model or a successor; the state of TLS is in this process alone.

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

/// On close, the kernel drops what is not sent instead of keeping it for a client that does not read.
const RESET: libc::linger = libc::linger { l_onoff: 1, l_linger: 0 };

/// Byte stream of a client.
#[derive(Debug)]
pub enum ClientStream {
    /// Plain TCP.
    Tcp(TcpStream),
    /// TLS; boxed, since it is larger by far.
    Tls(Box<TlsStream<TcpStream>>),
    /// Socket pair over which the predecessor forwards a request.
    Forwarded {
        /// End of this process.
        stream: UnixStream,
        /// The predecessor has admitted the request within its token's quota.
        admitted: bool,
    },
}

trait Duplex: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Duplex for T {}

impl ClientStream {
    /// Another descriptor of the same connection.
    pub(super) fn duplicate(&self) -> io::Result<std::net::TcpStream> {
        match self {
            Self::Tcp(stream) => Ok(stream.as_fd().try_clone_to_owned()?.into()),
            Self::Tls(_) | Self::Forwarded { .. } => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Has the kernel drop what is not sent yet.
    pub(super) fn discard_unsent(&self) {
        let client = match self {
            Self::Tcp(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
            Self::Forwarded { .. } => return, // the kernel keeps nothing for it
        };
        let _ = setsockopt(client, Linger, &RESET); // fails only on sockets that are closed already
    }

    /// The stream below TLS, where nothing that arrives is of use any more.
    pub(super) fn without_tls(self) -> Self {
        match self {
            Self::Tls(stream) => Self::Tcp(stream.into_inner().0),
            Self::Tcp(_) | Self::Forwarded { .. } => self,
        }
    }

    fn duplex(&mut self) -> Pin<&mut dyn Duplex> {
        Pin::new(match self {
            Self::Tcp(stream) => stream,
            Self::Tls(stream) => stream,
            Self::Forwarded { stream, .. } => stream,
        })
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.duplex().poll_read(context, buffer)
    }
}

impl AsyncWrite for ClientStream {
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
            Self::Forwarded { stream, .. } => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.duplex().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.duplex().poll_shutdown(context)
    }
}
