//! Content of a file as the body of a response: read piece by piece, as its client takes it.

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use omni_ingress::StreamCut;
use omni_jobs::Content;
use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::task::JoinHandle;

/// Longest time for a client to read a file.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(3600);
/// Longest time for a client to read a file whose scheduler has been taken over, and ends with the last response.
pub(crate) const LEAVING: Duration = Duration::from_secs(120);
/// Bytes of a piece.
const PIECE: usize = 64 * 1024;

/// Body of a file's content.
#[derive(Debug)]
pub struct FileBody {
    state: State,
    /// Bytes that have not been sent.
    left: u64,
}

#[derive(Debug)]
enum State {
    Idle(Content),
    Reading(JoinHandle<io::Result<(Content, Bytes)>>),
    Over,
}

impl FileBody {
    /// The first `length` bytes of a file.
    pub(crate) fn new(content: Content, length: u64) -> Self {
        Self { state: State::Idle(content), left: length }
    }
}

impl Body for FileBody {
    type Data = Bytes;
    type Error = StreamCut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StreamCut>>> {
        loop {
            match std::mem::replace(&mut self.state, State::Over) {
                State::Over => return Poll::Ready(None),
                State::Idle(_) if self.left == 0 => return Poll::Ready(None),
                State::Idle(mut content) => {
                    let length = usize::try_from(self.left).unwrap_or(PIECE).min(PIECE);
                    let read = move || {
                        let mut piece = vec![0; length];
                        content.read_exact(&mut piece)?;
                        Ok((content, Bytes::from(piece)))
                    };
                    self.state = State::Reading(tokio::task::spawn_blocking(read));
                }
                State::Reading(mut reading) => match Pin::new(&mut reading).poll(context) {
                    Poll::Pending => {
                        self.state = State::Reading(reading);
                        return Poll::Pending;
                    }
                    Poll::Ready(Ok(Ok((content, piece)))) => {
                        self.left -= piece.len() as u64;
                        self.state = State::Idle(content);
                        return Poll::Ready(Some(Ok(Frame::data(piece))));
                    }
                    Poll::Ready(_) => return Poll::Ready(Some(Err(StreamCut("the file cannot be read".into())))),
                },
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
