//! The engine: a thread that computes step after step for all requests that live.
//!
//! ```text
//!  Submission ──▶ commands ──▶ batcher ──▶ backend ──▶ sampler ──▶ Event of each request
//!                    ▲                        │                        │
//!                    └──── the next step ◀────┴── drafts, outcomes ◀───┘
//! ```
//!
//! Invariants: one thread owns backend and batcher; it waits for nothing but commands, and for those only while no
//! request lives; a receiver that is dropped cancels its request within one step, a choice that is stopped ends as soon.
//!
//! | module | contents |
//! | --- | --- |
//! | `submission` | requests, events, failures |
//! | `events` | events on their way, choices that are stopped |
//! | `queue` | memory of requests that wait |
//! | `run` | the thread: commands, steps, ends |
//! | `sampling` | samples of a step's rows |
//! | `live` | a request in the thread, and its choices |
//! | `drafts`, `drafting` | drafts of an answer, of all answers of a step |
//! | `draft_model` | the draft model: its steps and blocks |
//! | `status` | numbers for health and metrics |

mod draft_model;
mod drafting;
mod drafts;
mod events;
mod live;
mod queue;
mod run;
mod sampling;
mod status;
mod submission;

pub use draft_model::{Draft, draft_capacity};
pub use events::Events;
pub use run::{Drafting, Settings};
pub use status::Status;
pub(crate) use submission::unscored;
pub use submission::{Event, Failure, FinishReason, Generation, Submission, Token, Usage, Work};

use omni_batcher::LimitsError;
use omni_kernels::{Backend, BackendError};
use queue::QueueBudget;
use run::{Command, Run, Submitted};
use status::Shared;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use tokio::sync::oneshot;

/// Most commands on their way to the thread.
const COMMANDS: usize = 1024;

/// Engine with a loaded model. It ends when it is dropped.
pub struct Engine {
    commands: Option<SyncSender<Command>>,
    queue: QueueBudget,
    /// Most sequences at a time, and so choices of a request.
    sequences: usize,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Reason why an engine cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The limits leave no room for progress.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// The backend has no memory for them.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The thread cannot be started.
    #[error("the engine's thread cannot be started: {0}")]
    Thread(#[from] io::Error),
}

impl Engine {
    /// Reserves the backend's memory for the settings' limits, and starts the thread.
    ///
    /// # Errors
    /// The limits cannot be kept, or the memory is not to be had.
    pub fn start<B: Backend + 'static>(backend: B, settings: Settings) -> Result<Self, StartError> {
        Self::with_draft(backend, None, settings)
    }

    /// Starts the thread with a draft model beside the model.
    ///
    /// # Errors
    /// The limits cannot be kept, or the memory is not to be had.
    pub fn with_draft<B: Backend + 'static>(
        backend: B,
        draft: Option<Draft>,
        settings: Settings,
    ) -> Result<Self, StartError> {
        let (commands, receiver) = sync_channel(COMMANDS);
        let shared = Arc::new(Shared::new(settings.hung));
        let (queue, sequences) = (QueueBudget::new(settings.queued_bytes), settings.limits.sequences);
        let run = Run::new(backend, draft, settings, receiver, Arc::clone(&shared))?;
        let thread = thread::Builder::new().name("engine".to_owned()).spawn(move || run.run())?;
        Ok(Self { commands: Some(commands), queue, sequences, shared, thread: Some(thread) })
    }

    /// Gives the engine a request. Its events come in order; dropping them cancels it.
    ///
    /// # Errors
    /// The engine is overloaded, or has ended.
    pub fn submit(&self, submission: Submission) -> Result<Events, Failure> {
        let (memory, scores) = self.queue.take(&submission).ok_or(Failure::Overloaded)?;
        let (choices, most) = live::most_events(&submission);
        // More choices than sequences are refused.
        let choices = choices.min(u32::try_from(self.sequences).unwrap_or(u32::MAX));
        let (sender, events) = events::events(choices, most, scores);
        self.send(Command::Submit(Box::new(Submitted { submission, events: sender, memory })))?;
        Ok(events)
    }

    /// Has the backend give its memory back. Requests that run are computed anew after [`Engine::wake`]; those that
    /// come meanwhile wait. Returns the bytes.
    ///
    /// # Errors
    /// The backend cannot sleep, or the engine has ended.
    pub fn sleep(&self) -> Result<u64, Failure> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Sleep(reply))?;
        answer.blocking_recv().unwrap_or(Err(Failure::Ending))
    }

    /// Has the backend take its memory again.
    ///
    /// # Errors
    /// The memory is not to be had, and the backend still sleeps; or the engine has ended.
    pub fn wake(&self) -> Result<(), Failure> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Wake(reply))?;
        answer.blocking_recv().unwrap_or(Err(Failure::Ending))
    }

    /// Waits until the other events of a step are sent, for one who has the first: microseconds, or as long as the thread that
    /// sends them has no processor, which may be because this one has it.
    pub fn wait_until_sent(&self) {
        self.shared.wait_until_sent();
    }

    /// Numbers of this moment.
    #[must_use]
    pub fn status(&self) -> Status {
        Status { queued_bytes: self.queue.held(), ..self.shared.status() }
    }

    fn send(&self, command: Command) -> Result<(), Failure> {
        let commands = self.commands.as_ref().ok_or(Failure::Ending)?;
        commands.try_send(command).map_err(|error| match error {
            TrySendError::Full(_) => Failure::Overloaded,
            TrySendError::Disconnected(_) => Failure::Ending,
        })
    }
}

impl Drop for Engine {
    /// Ends the thread after its step. Requests that live fail.
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic was printed by its thread
        }
    }
}
