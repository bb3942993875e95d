//! Writer thread: the only connection that writes. Everything that waits is one transaction, and one flush.
//!
//! ```text
//! callers ──bounded queue──► BEGIN; each command in a savepoint; results written and flushed; COMMIT ──► answers
//! ```
//!
//! A command is answered after its commit. One that fails is rolled back alone; if the commit fails, all of the group
//! have failed.

#[cfg(test)]
mod tests;

use crate::error::JobError;
use crate::results::ResultFiles;
use nix::fcntl::Flock;
use rusqlite::Connection;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, oneshot};

/// Commands that wait; further callers wait for a place.
const QUEUE: usize = 1024;
/// Commands of a transaction.
const MAX_GROUP: usize = 512;
/// Bytes of results in a transaction.
const MAX_GROUP_BYTES: usize = 8 << 20;
/// Bytes of results that wait, in units of [`UNIT`].
const QUEUED_UNITS: usize = 64 << 10;
const UNIT: usize = 1024;
/// Pause before posted work is done again.
const RETRY: Duration = Duration::from_secs(1);

/// Transaction that a command is part of.
pub(crate) struct Unit<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) results: &'a mut ResultFiles,
}

/// Command in the queue.
trait Command: Send {
    /// Runs it in the transaction; returns whether it is to be kept.
    fn apply(&mut self, unit: &mut Unit<'_>) -> bool;
    /// Answers its caller. `failed`: the transaction was rolled back.
    fn answer(self: Box<Self>, failed: Option<&JobError>);
}

struct Task<F, T> {
    work: Option<F>,
    result: Result<T, JobError>,
    caller: oneshot::Sender<Result<T, JobError>>,
}

impl<F, T> Command for Task<F, T>
where
    F: FnOnce(&mut Unit<'_>) -> Result<T, JobError> + Send,
    T: Send,
{
    fn apply(&mut self, unit: &mut Unit<'_>) -> bool {
        if let Some(work) = self.work.take() {
            self.result = work(unit);
        }
        self.result.is_ok()
    }

    fn answer(self: Box<Self>, failed: Option<&JobError>) {
        let result = match failed {
            Some(error) => Err(error.clone()),
            None => self.result,
        };
        let _ = self.caller.send(result); // a caller that has gone needs no answer
    }
}

enum Message {
    Command(Box<dyn Command>),
    /// Look at the work that nobody waits for.
    Posted,
    /// The last message.
    End,
}

/// Work that nobody waits for. Bounded by the claims that are dropped.
type Posted = Mutex<Vec<PostedWork>>;
type PostedWork = Box<dyn FnMut(&mut Unit<'_>) -> Result<(), JobError> + Send>;

/// Handle of the thread.
pub(crate) struct Writer {
    queue: mpsc::Sender<Message>,
    bytes: Semaphore,
    posted: Arc<Posted>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl Writer {
    /// Starts the thread. `lock` is given up when the database is closed.
    pub(crate) fn start(connection: Connection, results: ResultFiles, lock: Flock<File>) -> io::Result<Self> {
        let (queue, messages) = mpsc::channel(QUEUE);
        let posted = Arc::new(Posted::default());
        let thread = Thread { connection, results, messages, posted: Arc::clone(&posted), lock, failing: false };
        let thread = thread::Builder::new().name("jobs".into()).spawn(move || thread.run())?;
        Ok(Self { queue, bytes: Semaphore::new(QUEUED_UNITS), posted, thread: Mutex::new(Some(thread)) })
    }

    /// Runs `work` in the next transaction and returns its result once that is on the disk. `bytes`: those it holds in
    /// memory meanwhile. A caller that stops waiting does not know whether it was done.
    pub(crate) async fn submit<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&mut Unit<'_>) -> Result<T, JobError> + Send + 'static,
    ) -> Result<T, JobError> {
        let units = bytes.div_ceil(UNIT).min(QUEUED_UNITS);
        let _permit =
            self.bytes.acquire_many(u32::try_from(units).unwrap_or(u32::MAX)).await.map_err(|_| JobError::Closed)?;
        let (caller, answer) = oneshot::channel();
        let task = Task { work: Some(work), result: Err(JobError::Closed), caller };
        self.queue.send(Message::Command(Box::new(task))).await.map_err(|_| JobError::Closed)?;
        answer.await.unwrap_or(Err(JobError::Closed))
    }

    /// Has `work` done in a later transaction, without waiting; again if that transaction fails.
    pub(crate) fn post(&self, work: impl FnMut(&mut Unit<'_>) -> Result<(), JobError> + Send + 'static) {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(work));
        // A queue that is full has a message behind which this is looked at.
        let _ = self.queue.try_send(Message::Posted);
    }

    /// Ends the thread once what waits is done; returns when the database is closed. Later commands fail.
    pub(crate) async fn close(&self) {
        let _ = self.queue.send(Message::End).await; // it has ended already
        self.queue.closed().await;
    }
}

impl Drop for Writer {
    /// The next process may open the database once this has returned.
    fn drop(&mut self) {
        // A queue without senders ends the thread once it is empty.
        drop(std::mem::replace(&mut self.queue, mpsc::channel(1).0));
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // A command may hold the last handle: then this is the thread itself.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id()) {
            let _ = thread.join(); // it panics nowhere
        }
    }
}

struct Thread {
    connection: Connection,
    results: ResultFiles,
    messages: mpsc::Receiver<Message>,
    posted: Arc<Posted>,
    lock: Flock<File>,
    /// The last transaction failed: the next failure is not logged again.
    failing: bool,
}

/// Transaction so far.
#[derive(Default)]
struct Group {
    commands: Vec<Box<dyn Command>>,
    posted: Vec<PostedWork>,
    /// Error of the whole transaction.
    failed: Option<JobError>,
    /// The last message was among the commands.
    is_last: bool,
}

impl Thread {
    fn run(mut self) {
        let mut first = self.messages.blocking_recv();
        while let Some(message) = first {
            let mut group = Group::default();
            self.apply(message, &mut group);
            let is_last = group.is_last;
            let again = self.finish(group);
            first = if is_last {
                None
            } else if again {
                thread::sleep(RETRY);
                Some(Message::Posted)
            } else {
                self.messages.blocking_recv()
            };
        }
        let Self { connection, lock, mut messages, .. } = self;
        drop(connection);
        drop(lock);
        messages.close();
    }

    /// Runs what waits in one transaction.
    fn apply(&mut self, first: Message, group: &mut Group) {
        group.failed = self.connection.execute_batch("BEGIN IMMEDIATE").err().map(JobError::from);
        let mut next = Some(first);
        while let Some(message) = next.take() {
            match message {
                Message::Command(mut command) => {
                    group.failed = group.failed.take().or_else(|| self.savepoint(|unit| command.apply(unit)).err());
                    group.commands.push(command);
                }
                Message::Posted => {}
                Message::End => group.is_last = true,
            }
            let posted = std::mem::take(&mut *self.posted.lock().unwrap_or_else(PoisonError::into_inner));
            for mut work in posted {
                group.failed = group.failed.take().or_else(|| self.savepoint(|unit| logged(&work(unit))).err());
                group.posted.push(work);
            }
            let is_full = group.commands.len() >= MAX_GROUP || self.results.unwritten() >= MAX_GROUP_BYTES;
            if !group.is_last && !is_full {
                next = self.messages.try_recv().ok();
            }
        }
    }

    /// Commits and answers; returns true if posted work has to be done again.
    fn finish(&mut self, group: Group) -> bool {
        let failed = group.failed.or_else(|| self.commit().err());
        if let Some(error) = &failed {
            self.results.discard();
            if !self.connection.is_autocommit() {
                let _ = self.connection.execute_batch("ROLLBACK"); // else the next BEGIN fails, and says so
            }
            if !self.failing {
                tracing::error!(error = error as &dyn std::error::Error, "changes of batch jobs cannot be stored");
            }
        } else if self.failing {
            tracing::info!("changes of batch jobs are stored again");
        }
        self.failing = failed.is_some();
        for command in group.commands {
            command.answer(failed.as_ref());
        }
        let again = failed.is_some() && !group.posted.is_empty();
        if again {
            self.posted.lock().unwrap_or_else(PoisonError::into_inner).extend(group.posted);
        }
        again
    }

    /// Runs one command in a savepoint, which is kept if it says so. An error is that of the whole transaction.
    fn savepoint(&mut self, command: impl FnOnce(&mut Unit<'_>) -> bool) -> Result<(), JobError> {
        self.connection.prepare_cached("SAVEPOINT command")?.execute([])?;
        if !command(&mut Unit { connection: &self.connection, results: &mut self.results }) {
            let rolled_back = self.connection.prepare_cached("ROLLBACK TO command")?.execute([]);
            if self.connection.is_autocommit() {
                let source = io::Error::other("the database has rolled back, as on a full disk");
                return Err(JobError::io("change the database")(source));
            }
            rolled_back?;
        }
        self.connection.prepare_cached("RELEASE command")?.execute([])?;
        Ok(())
    }

    fn commit(&mut self) -> Result<(), JobError> {
        self.results.write()?;
        Ok(self.connection.execute_batch("COMMIT")?)
    }
}

fn logged(result: &Result<(), JobError>) -> bool {
    let Err(error) = result else { return true };
    tracing::error!(error = error as &dyn std::error::Error, "a change of batch jobs that nobody waits for failed");
    false
}
