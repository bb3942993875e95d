//! Upload of a large body from the client to the model, through a Unix socket pair of this request.
//!
//! The handler polls it beside the model's response, and beside the response's stream as long as that goes on. Three transfers:
//!
//! - A body in chunks or over HTTP/2 is copied as hyper decodes it.
//! - A body of known length goes from socket to socket inside the kernel ([`super::splice`]).
//! - A model that the node trusts gets the connection itself.
//!
//! Invariants: nothing is read from the client, and no `100 Continue` sent, before the request is on its way to the model; at most one piece
//! of the body is in this process; the model cannot take half a body for a whole one.
//!
//! The last is ensured by one byte. A Unix socket that is closed with unread bytes in it gives the other side an error instead of an end.
//! One byte is left in the socket, and read only at the end of a complete body: the model gets an error whether the client, the limit or the
//! end of this process cuts the body off.

use super::splice::{self, Spliced};
use crate::body_handoff::RawBodyHandoff;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use omni_body::{BodyReader, BodySocket, BudgetShare, UploadPermit};
use omni_request_error::Failure;
use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSlice, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;

/// Upload that has not begun. Dropped before its end, the body is cut off.
#[derive(Debug)]
pub struct Upload {
    body: Incoming,
    to: UnixStream,
    transfer: Transfer,
    request_sent: oneshot::Receiver<BodyReader>,
    permit: UploadPermit,
}

/// Transfer of a body to the model.
#[derive(Debug)]
pub enum Transfer {
    /// Copy out of hyper, of at most so many bytes.
    Copy(u64),
    /// Splice from socket to socket, of exactly so many bytes.
    Splice(Arc<RawBodyHandoff>, u64),
    /// Read of so many bytes by the model, from the connection itself.
    HandOver(Arc<RawBodyHandoff>, u64),
}

/// Upload that has begun.
pub struct RunningUpload(Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>);

impl std::fmt::Debug for RunningUpload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RunningUpload")
    }
}

impl Future for RunningUpload {
    type Output = Result<(), Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context)
    }
}

/// Next part of a body that goes past hyper.
enum Next {
    /// A piece that hyper had read with the head.
    Piece(Bytes),
    /// The end: hyper had read the whole body.
    End,
    /// The socket with the rest.
    Socket(TcpStream),
}

impl Upload {
    /// An upload, and the model's end of it.
    ///
    /// # Errors
    /// The share has as many uploads as it may, or the node has no descriptors left.
    pub fn new(body: Incoming, transfer: Transfer, share: &Arc<BudgetShare>) -> Result<(Self, BodySocket), Failure> {
        let permit = share.upload().ok_or(Failure::UploadsFull)?;
        let pair = || -> io::Result<_> {
            let (ours, mut theirs) = std::os::unix::net::UnixStream::pair()?;
            ours.set_nonblocking(true)?;
            theirs.write_all(&[0])?; // see the header of this file
            Ok((UnixStream::from_std(ours)?, theirs.into()))
        };
        let (to, socket) = pair().map_err(|_| Failure::UploadsFull)?;
        let (sent, request_sent) = oneshot::channel();
        Ok((Self { body, to, transfer, request_sent, permit }, BodySocket { socket, sent }))
    }

    /// Begins the upload, once it is polled.
    #[must_use]
    pub fn begin(self) -> RunningUpload {
        RunningUpload(Box::pin(self.run()))
    }

    /// Moves the body until its end, or until the model stops reading. Then, where hyper does not watch the connection any
    /// more, until the client hangs up.
    ///
    /// # Errors
    /// The client's side broke, or sent more than the limit.
    async fn run(self) -> Result<(), Failure> {
        let Ok(reader) = self.request_sent.await else {
            return Ok(()); // the request ended before it was sent: its response says why
        };
        let _permit = self.permit;
        match self.transfer {
            Transfer::Copy(limit) => copy(self.body, self.to, limit).await,
            Transfer::Splice(handoff, length) => bypass_hyper(self.body, self.to, &handoff, length, false).await,
            Transfer::HandOver(handoff, length) => {
                bypass_hyper(self.body, self.to, &handoff, length, reader == BodyReader::Model).await
            }
        }
    }
}

pub(super) fn incomplete(why: impl std::fmt::Display) -> Failure {
    Failure::BadRequest(format!("the request's body broke off: {why}"))
}

/// Ends a complete body. A model that has closed its end needs no end.
async fn complete(mut to: UnixStream) {
    let _ = to.read(&mut [0]).await;
}

async fn copy(mut body: Incoming, mut to: UnixStream, limit: u64) -> Result<(), Failure> {
    let mut length = 0_u64;
    let mut reads = true;
    while let Some(frame) = body.frame().await {
        let data = match frame {
            Ok(frame) => frame.into_data().unwrap_or_default(), // nothing but data and trailers
            Err(_) if !reads => return Ok(()),
            Err(error) => return Err(incomplete(error)),
        };
        length += data.len() as u64;
        if length > limit {
            return Err(Failure::BodyTooLarge { limit });
        }
        // The model may have closed its end: its response counts. The rest is read and dropped, so that a client which writes before
        // it reads gets that response.
        reads = reads && to.write_all(&data).await.is_ok();
    }
    complete(to).await;
    Ok(())
}

async fn bypass_hyper(
    mut body: Incoming,
    mut to: UnixStream,
    handoff: &RawBodyHandoff,
    length: u64,
    hand_over: bool,
) -> Result<(), Failure> {
    let mut rest = length;
    let mut reads = true;
    let socket = loop {
        match poll_fn(|context| next(&mut body, handoff, context)).await? {
            Next::Piece(data) => {
                rest = rest.saturating_sub(data.len() as u64);
                handoff.on_read(data.len() as u64);
                reads = reads && to.write_all(&data).await.is_ok();
            }
            Next::End => {
                complete(to).await;
                return Ok(());
            }
            Next::Socket(socket) => break socket,
        }
    };
    // Hyper has the response say that the connection ends once `body` is dropped: it is kept for as long as the connection may continue.
    if hand_over {
        drop(body);
        handoff.give_to_model(&socket).map_err(|_| Failure::UploadsFull)?;
        // The model may have closed its end: its response counts.
        if reads && send_socket(&to, &socket).await.is_ok() {
            tokio::select! {
                () = complete(to) => {}
                () = hung_up(&socket) => {}
            }
        }
    } else if reads {
        match splice::splice(&socket, &to, rest, handoff).await {
            Ok(Spliced::Complete) => complete(to).await,
            Ok(Spliced::ReaderClosed) => drop(to),
            Err(error) => return Err(incomplete(error)),
        }
    }
    hung_up(&socket).await;
    Err(Failure::BadRequest("the client hung up".into()))
}

fn next(body: &mut Incoming, handoff: &RawBodyHandoff, context: &mut Context<'_>) -> Poll<Result<Next, Failure>> {
    Poll::Ready(match Pin::new(body).poll_frame(context) {
        Poll::Ready(Some(Ok(frame))) => Ok(Next::Piece(frame.into_data().unwrap_or_default())),
        Poll::Ready(Some(Err(error))) => Err(incomplete(error)),
        Poll::Ready(None) => Ok(Next::End),
        // In this order: the socket is provided only after hyper has yielded all that it had read.
        Poll::Pending => match std::task::ready!(handoff.poll_socket(context)) {
            Ok(socket) => Ok(Next::Socket(socket)),
            Err(_) => Err(Failure::UploadsFull), // no descriptors left
        },
    })
}

/// Sends the connection to the model, with a byte that is not part of the body.
async fn send_socket(to: &UnixStream, socket: &TcpStream) -> io::Result<()> {
    let (to_fd, descriptor) = (to.as_fd().as_raw_fd(), [socket.as_fd().as_raw_fd()]);
    let sent = to.async_io(Interest::WRITABLE, || {
        let rights = [ControlMessage::ScmRights(&descriptor)];
        Ok(sendmsg::<()>(to_fd, &[IoSlice::new(&[0])], &rights, MsgFlags::MSG_NOSIGNAL, None)?)
    });
    sent.await.map(drop)
}

/// Returns when the client has closed the connection, or lost it.
async fn hung_up(socket: &TcpStream) {
    while let Ok(ready) = socket.ready(Interest::READABLE | Interest::ERROR).await {
        if ready.is_read_closed() || ready.is_error() {
            return;
        }
        // More bytes, which are not read: clear the readiness and wait again.
        let _ = socket.try_io(Interest::READABLE, || Err::<(), _>(ErrorKind::WouldBlock.into()));
    }
}
