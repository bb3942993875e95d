//! A large body on its way from the client to the model, through a Unix socket pair of this request.
//!
//! Polled by [`super::run`] beside the model's answer, and by the answer's stream as long as that goes on. Three ways: what
//! comes in chunks or over HTTP/2 is copied as hyper decodes it; what has a length goes from socket to socket inside the
//! kernel ([`super::splice`]); a model that the node trusts gets the connection itself. What always holds: nothing is read
//! from the client, and no `100 Continue` sent, before the request is on its way to the model; at most one piece of the body
//! is in this process; and the model cannot take half a body for a whole one.
//!
//! The last is the work of one byte. A Unix socket that is closed with something unread in it gives the other side an error
//! instead of an end. So there lies a byte, which is read at the end of a complete body, and only then: whether the client,
//! the limit or the end of this process cuts the body off.

use super::splice::{self, Spliced};
use crate::connection::Hold;
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

/// A body that is being uploaded. Dropped before its end, it is cut off.
#[derive(Debug)]
pub struct Upload {
    body: Incoming,
    to: UnixStream,
    way: Way,
    wanted: oneshot::Receiver<BodyReader>,
    /// Its descriptors.
    room: UploadPermit,
}

/// How a body gets to the model.
#[derive(Debug)]
pub enum Way {
    /// Copied out of hyper, at most so many bytes.
    Copied(u64),
    /// From socket to socket, exactly so many bytes.
    Spliced(Arc<Hold>, u64),
    /// By the model, from the connection itself: so many bytes.
    HandedOver(Arc<Hold>, u64),
}

/// An upload under way.
pub struct Uploading(Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>);

impl std::fmt::Debug for Uploading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Uploading")
    }
}

impl Future for Uploading {
    type Output = Result<(), Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context)
    }
}

/// What comes next of a held connection.
enum Next {
    /// Hyper had read it with the head.
    Piece(Bytes),
    /// It had read it all.
    End,
    /// The rest lies in here.
    Socket(TcpStream),
}

impl Upload {
    /// The upload, and the model's end of it.
    ///
    /// # Errors
    /// The node has no descriptors left.
    pub fn new(body: Incoming, way: Way, share: &Arc<BudgetShare>) -> Result<(Self, BodySocket), Failure> {
        let room = share.upload().ok_or(Failure::NodeBusy)?;
        let pair = || -> io::Result<_> {
            let (ours, mut theirs) = std::os::unix::net::UnixStream::pair()?;
            ours.set_nonblocking(true)?;
            theirs.write_all(&[0])?; // see the head of this file
            Ok((UnixStream::from_std(ours)?, theirs.into()))
        };
        let (to, socket) = pair().map_err(|_| Failure::NodeBusy)?;
        let (sent, wanted) = oneshot::channel();
        Ok((Self { body, to, way, wanted, room }, BodySocket { socket, sent }))
    }

    /// Begins, once it is polled.
    #[must_use]
    pub fn begin(self) -> Uploading {
        Uploading(Box::pin(self.run()))
    }

    /// Moves the body until its end, or until the model stops reading. Then, where hyper does not watch the connection any
    /// more, until the client hangs up.
    ///
    /// # Errors
    /// The client's side broke, or sent more than the limit.
    async fn run(self) -> Result<(), Failure> {
        let Ok(reader) = self.wanted.await else {
            return Ok(()); // the request ended before anybody got it: its answer says why
        };
        let _room = self.room;
        match self.way {
            Way::Copied(limit) => copy(self.body, self.to, limit).await,
            Way::Spliced(hold, length) => past_hyper(self.body, self.to, &hold, length, false).await,
            Way::HandedOver(hold, length) => {
                past_hyper(self.body, self.to, &hold, length, reader == BodyReader::Model).await
            }
        }
    }
}

pub(crate) fn broke_off(why: impl std::fmt::Display) -> Failure {
    Failure::BadRequest(format!("the request's body broke off: {why}"))
}

/// The body is complete. A model that has closed its end needs no end of ours.
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
            Err(error) => return Err(broke_off(error)),
        };
        length += data.len() as u64;
        if length > limit {
            return Err(Failure::BodyTooLarge { limit });
        }
        // A model that has read enough: its answer counts. The rest is read, so that a client which writes before it reads
        // gets that answer.
        reads = reads && to.write_all(&data).await.is_ok();
    }
    complete(to).await;
    Ok(())
}

async fn past_hyper(
    mut body: Incoming,
    mut to: UnixStream,
    hold: &Hold,
    length: u64,
    hand_over: bool,
) -> Result<(), Failure> {
    let mut rest = length;
    let mut reads = true;
    let socket = loop {
        match poll_fn(|context| next(&mut body, hold, context)).await? {
            Next::Piece(data) => {
                rest = rest.saturating_sub(data.len() as u64);
                hold.took(data.len() as u64);
                reads = reads && to.write_all(&data).await.is_ok();
            }
            Next::End => {
                complete(to).await;
                return Ok(());
            }
            Next::Socket(socket) => break socket,
        }
    };
    // Hyper says that the connection ends with the answer once nobody wants the body: `body` stays for as long as it may go on.
    if hand_over {
        drop(body);
        hold.hand_over(&socket).map_err(|_| Failure::NodeBusy)?;
        // A model that has closed its end wants none of it; its answer counts.
        if reads && give(&to, &socket).await.is_ok() {
            tokio::select! {
                () = complete(to) => {}
                () = gone(&socket) => {}
            }
        }
    } else if reads {
        match splice::splice(&socket, &to, rest, hold).await {
            Ok(Spliced::Whole) => complete(to).await,
            Ok(Spliced::NotWanted) => drop(to),
            Err(error) => return Err(broke_off(error)),
        }
    }
    gone(&socket).await;
    Err(Failure::BadRequest("the client hung up".into()))
}

fn next(body: &mut Incoming, hold: &Hold, context: &mut Context<'_>) -> Poll<Result<Next, Failure>> {
    Poll::Ready(match Pin::new(body).poll_frame(context) {
        Poll::Ready(Some(Ok(frame))) => Ok(Next::Piece(frame.into_data().unwrap_or_default())),
        Poll::Ready(Some(Err(error))) => Err(broke_off(error)),
        Poll::Ready(None) => Ok(Next::End),
        // In this order: once the connection is given away hyper has handed over what it had, and nothing is left here.
        Poll::Pending => match std::task::ready!(hold.poll_socket(context)) {
            Ok(socket) => Ok(Next::Socket(socket)),
            Err(_) => Err(Failure::NodeBusy), // no descriptors left
        },
    })
}

/// Sends the connection to the model, with a byte that is none of the body's.
async fn give(to: &UnixStream, socket: &TcpStream) -> io::Result<()> {
    let (to_fd, descriptor) = (to.as_fd().as_raw_fd(), [socket.as_fd().as_raw_fd()]);
    let sent = to.async_io(Interest::WRITABLE, || {
        let rights = [ControlMessage::ScmRights(&descriptor)];
        Ok(sendmsg::<()>(to_fd, &[IoSlice::new(&[0])], &rights, MsgFlags::MSG_NOSIGNAL, None)?)
    });
    sent.await.map(drop)
}

/// Returns when the client has closed the connection, or lost it.
async fn gone(socket: &TcpStream) {
    while let Ok(ready) = socket.ready(Interest::READABLE | Interest::ERROR).await {
        if ready.is_read_closed() || ready.is_error() {
            return;
        }
        // More bytes, which nobody will read: wait for news again.
        let _ = socket.try_io(Interest::READABLE, || Err::<(), _>(ErrorKind::WouldBlock.into()));
    }
}
