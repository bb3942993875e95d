//! The client's socket as hyper reads and writes it: notes in the [`ConnectionState`] what passes, and withholds what is not for hyper.

use super::http2_frames::{FrameCounter, Verdict};
use super::state::ConnectionState;
use super::stream::ClientStream;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep_until};

/// The client's socket.
#[derive(Debug)]
pub(crate) struct Socket {
    /// `None` once it was dropped.
    stream: Option<ClientStream>,
    state: Arc<ConnectionState>,
    /// Frames that have arrived over HTTP/2.
    frames: FrameCounter,
    /// Nothing is read before this has elapsed.
    pause: Option<Pin<Box<Sleep>>>,
}

impl Socket {
    pub(crate) fn new(stream: ClientStream, state: Arc<ConnectionState>) -> Self {
        Self { stream: Some(stream), state, frames: FrameCounter::default(), pause: None }
    }

    /// Another descriptor of the same connection.
    fn duplicate(&self) -> io::Result<std::net::TcpStream> {
        self.stream.as_ref().ok_or(io::ErrorKind::NotConnected)?.duplicate()
    }

    fn stream(&mut self) -> io::Result<Pin<&mut ClientStream>> {
        self.stream.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn note_write(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.state.io.on_write(matches!(written, Poll::Ready(Ok(_))));
        written
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let Some(stream) = self.stream.take() else { return };
        let end = &self.state.end;
        let is_cut = end.is_cut();
        if is_cut {
            stream.discard_unsent();
        }
        if !is_cut && end.continues() {
            end.keep_leftover(stream);
            return;
        }
        match (end.successor(), stream) {
            (Some(successor), ClientStream::Tcp(stream)) => {
                let _ = successor.try_send(stream); // it has room for every connection that there may be
            }
            (_, stream) if !is_cut && end.lingers() => end.keep_leftover(stream),
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
        if self.state.handoff.is_active() {
            self.state.handoff.provide_socket(|| self.duplicate());
            return Poll::Pending;
        }
        if self.state.end.successor().is_some() {
            return Poll::Pending; // further bytes are for the successor; hyper is about to end, and needs no waking
        }
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(context));
            self.pause = None;
        }
        if self.state.has_read_enough() {
            context.waker().wake_by_ref();
            return Poll::Pending; // in the next turn
        }
        let before = buffer.filled().len();
        let Poll::Ready(read) = self.stream()?.poll_read(context, buffer) else {
            self.state.io.on_no_input();
            return Poll::Pending;
        };
        read?;
        if let Some(bytes @ [_, ..]) = buffer.filled().get(before..) {
            self.state.on_read(bytes);
            // A request of HTTP/1.1 is known by its first byte.
            if self.state.io.may_be_http2() {
                match self.frames.count(bytes, Instant::now()) {
                    Verdict::Continue => {}
                    Verdict::Pause(until) => self.pause = Some(Box::pin(sleep_until(until.into()))),
                    Verdict::LargeTrailers => {
                        self.state.end.on_large_trailers();
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
        self.note_write(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.stream()?.poll_write_vectored(context, slices);
        self.note_write(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.state.io.on_close();
        if self.state.end.continues() {
            return self.stream()?.poll_flush(context); // hyper is done with the connection, the client is not
        }
        if self.state.handoff.is_active() {
            self.state.handoff.on_close(self.duplicate().ok());
        }
        if self.state.end.successor().is_some() {
            return Poll::Ready(Ok(()));
        }
        self.stream()?.poll_shutdown(context)
    }
}
