//! The client's socket, as hyper reads and writes it: what passes is noted in [`Known`], and what hyper may not have is kept
//! from it.

use super::http2_frames::{Frames, Verdict};
use super::state::Known;
use super::stream::Stream;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep_until};

/// The client's socket.
#[derive(Debug)]
pub(crate) struct Socket {
    /// `None` once it was bequeathed.
    stream: Option<Stream>,
    known: Arc<Known>,
    /// What it has brought over HTTP/2.
    frames: Frames,
    /// It is not read before this is over.
    pause: Option<Pin<Box<Sleep>>>,
}

impl Socket {
    pub(crate) fn new(stream: Stream, known: Arc<Known>) -> Self {
        Self { stream: Some(stream), known, frames: Frames::default(), pause: None }
    }

    /// The same connection once more.
    fn duplicate(&self) -> io::Result<std::net::TcpStream> {
        self.stream.as_ref().ok_or(io::ErrorKind::NotConnected)?.duplicate()
    }

    fn stream(&mut self) -> io::Result<Pin<&mut Stream>> {
        self.stream.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn wrote(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.known.wrote(matches!(written, Poll::Ready(Ok(_))));
        written
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let Some(stream) = self.stream.take() else { return };
        let is_cut = self.known.cut.load(Ordering::Relaxed);
        if is_cut {
            stream.forget_unsent();
        }
        if !is_cut && self.known.goes_on.load(Ordering::Relaxed) {
            self.known.keep(stream);
            return;
        }
        match (self.known.heir.get(), stream) {
            (Some(heir), Stream::Tcp(stream)) => {
                let _ = heir.try_send(stream); // it has room for every connection that there may be
            }
            (_, stream) if !is_cut && self.known.lingers.load(Ordering::Relaxed) => {
                self.known.keep(stream);
            }
            (_, stream) => drop(stream),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.known.hold.is_held() {
            self.known.hold.give(|| self.duplicate());
            return Poll::Pending;
        }
        if self.known.heir.get().is_some() {
            return Poll::Pending; // what comes is the successor's; hyper is about to end, and needs no waking
        }
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(context));
            self.pause = None;
        }
        if self.known.has_read_enough() {
            context.waker().wake_by_ref();
            return Poll::Pending; // in the next turn
        }
        let before = buffer.filled().len();
        let Poll::Ready(read) = self.stream()?.poll_read(context, buffer) else {
            self.known.found_nothing();
            return Poll::Pending;
        };
        read?;
        if let Some(bytes @ [_, ..]) = buffer.filled().get(before..) {
            self.known.read(bytes);
            // One of HTTP/1.1 is known by its first byte.
            if self.known.may_be_http2() {
                match self.frames.take(bytes, Instant::now()) {
                    Verdict::Go => {}
                    Verdict::Wait(until) => self.pause = Some(Box::pin(sleep_until(until.into()))),
                    Verdict::End => {
                        self.known.overdoes();
                        return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                    }
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = self.stream()?.poll_write(context, bytes);
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.stream()?.poll_write_vectored(context, slices);
        self.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.known.closes();
        if self.known.goes_on.load(Ordering::Relaxed) {
            return self.stream()?.poll_flush(context); // hyper has done its part; the connection has not
        }
        if self.known.hold.is_held() {
            self.known.hold.closing(self.duplicate().ok());
        }
        if self.known.heir.get().is_some() {
            return Poll::Ready(Ok(()));
        }
        self.stream()?.poll_shutdown(context)
    }
}
