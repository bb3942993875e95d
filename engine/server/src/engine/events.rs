//! Events of a request on their way to its recipient, and what the recipient tells the engine's thread.

use super::queue::QueuePermit;
use super::submission::Event;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Events of a request, in order. Dropped before the end, they cancel it within one step.
#[derive(Debug)]
pub struct Events {
    receiver: Receiver<Event>,
    notes: Arc<Notes>,
    /// Memory of log probabilities of the prompt.
    _scores: QueuePermit,
}

/// Notes that the recipient and the thread leave each other.
#[derive(Debug)]
struct Notes {
    /// A choice was stopped since the thread last looked.
    is_stopped: AtomicBool,
    /// Choices whose text is complete.
    stopped: Box<[AtomicBool]>,
    /// Tokens of the prompt that were in the cache.
    cached: AtomicUsize,
}

/// Thread's end of a request's events. Those of a step are sent together, once all of its requests have theirs: so their
/// recipients are woken by one step once, and beside each other.
#[derive(Debug)]
pub(super) struct EventSender {
    sender: Sender<Event>,
    /// Events of the step.
    kept: Vec<Event>,
    notes: Arc<Notes>,
}

/// Both ends of the events of a request with so many choices, of which at most `most` come. `scores`: memory of the log
/// probabilities of its prompt.
pub(super) fn events(choices: u32, most: usize, scores: QueuePermit) -> (EventSender, Events) {
    let (sender, receiver) = channel(most);
    let stopped = (0..choices).map(|_| AtomicBool::new(false)).collect();
    let notes = Arc::new(Notes { is_stopped: AtomicBool::new(false), stopped, cached: AtomicUsize::new(0) });
    (EventSender { sender, kept: Vec::new(), notes: Arc::clone(&notes) }, Events { receiver, notes, _scores: scores })
}

impl Events {
    /// Next event; `None`: the engine has ended.
    pub async fn recv(&mut self) -> Option<Event> {
        self.receiver.recv().await
    }

    /// Polls for the next event.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.receiver.poll_recv(context)
    }

    /// Next event, which the caller's thread waits for. Not for threads of an asynchronous runtime.
    pub fn blocking_recv(&mut self) -> Option<Event> {
        self.receiver.blocking_recv()
    }

    /// Returns true if no event is there at the moment.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.receiver.is_empty()
    }

    /// Ends a choice whose text is complete, as by a stop string: it is computed no further after the step that runs, and
    /// its blocks are given back. The other choices go on; after the last one the request ends.
    pub fn stop(&self, choice: u32) {
        if let Some(stopped) = self.notes.stopped.get(choice as usize) {
            stopped.store(true, Ordering::Relaxed);
            self.notes.is_stopped.store(true, Ordering::Release);
        }
    }

    /// Tokens of the prompt that were in the cache, known with the first token.
    #[must_use]
    pub fn cached(&self) -> usize {
        self.notes.cached.load(Ordering::Relaxed)
    }
}

impl EventSender {
    /// Keeps an event until the end of the step.
    pub(super) fn keep(&mut self, event: Event) {
        self.kept.push(event);
    }

    /// Sends what was kept. The channel has room for all events of a request: only a receiver that is gone takes none.
    pub(super) fn send_kept(&mut self) {
        for event in self.kept.drain(..) {
            let _ = self.sender.try_send(event);
        }
    }

    /// Sends the last event, behind what was kept.
    pub(super) fn end(mut self, last: Event) {
        self.keep(last);
        self.send_kept();
    }

    /// Returns true if nobody waits for the answer any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.sender.is_closed()
    }

    /// Returns true if a choice was stopped since the last call.
    pub(super) fn take_stop(&self) -> bool {
        self.notes.is_stopped.load(Ordering::Relaxed) && self.notes.is_stopped.swap(false, Ordering::Acquire)
    }

    /// Returns true if the choice was stopped.
    pub(super) fn is_stopped(&self, choice: u32) -> bool {
        self.notes.stopped.get(choice as usize).is_some_and(|stopped| stopped.load(Ordering::Relaxed))
    }

    /// Notes the tokens of the prompt that were in the cache.
    pub(super) fn set_cached(&self, tokens: usize) {
        self.notes.cached.store(tokens, Ordering::Relaxed);
    }
}
