//! Watcher: a process that sees changes by authors in the models folder, copies new content, and reports to the
//! launcher.
//!
//! inotify says where something happened, never what: the directory is then looked at. Lost events, new directories and
//! races all end in the same way, with another look; a directory that has not changed costs a listing of its files.
//!
//! Everything that touches an author's directory is done in a thread of its own ([`jobs`]), and the whole in a process
//! of its own: a file system that does not answer holds a thread in the kernel, where no signal ends it, and with it
//! its process. The launcher itself touches nothing of the folder, so it ends when it wants to, and the next one begins
//! anew.
//!
//! On a node of a single model nothing is watched: its directory is looked at for each scheduler ([`single`]).

mod debounce;
mod folder;
mod jobs;
mod missing;
mod place;
mod protocol;
mod refusal;
mod scan;
mod single;
mod supervisor;
mod unit;
mod watcher;
mod watches;

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use omni_config::Models;
use omni_log::chain;
use omni_snapshot::{Copier, Limits, SnapshotError};
use protocol::{Reporter, ToWatcher};
use std::io::{self, BufRead};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub(super) use supervisor::{RescanHandle, Watch};

/// After this long without events a directory counts as written.
const QUIET: Duration = Duration::from_millis(200);
/// After this long it is looked at all the same.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long to wait after trouble of the node's own.
const TROUBLE: Duration = Duration::from_secs(5);
/// How long to wait for a models folder that went away.
const MISSING: Duration = Duration::from_secs(1);
/// Words of the launcher that wait.
const WAITING_MESSAGES: usize = 256;

/// The models folder cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The folder is not there, or not a directory.
    #[error("cannot open the models folder {}: make it, or name another with --models", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// inotify is not to be had.
    #[error("cannot watch the models folder (fs.inotify.max_user_instances bounds the number of watchers)")]
    Inotify(#[source] Errno),
    /// The store is not to be had.
    #[error("cannot copy into the store of snapshots")]
    Store(#[from] SnapshotError),
}

/// The watcher's process: runs until its launcher has ended.
///
/// # Errors
/// Nothing can be watched at all.
pub fn watch(models: &Models, store: &Path, limits: Limits) -> Result<(), WatchError> {
    let _ = prctl::set_pdeathsig(Signal::SIGKILL); // without it, the end of the input is heard
    let copier = Arc::new(Copier::open(store, limits)?);
    let (messages, told) = std::sync::mpsc::sync_channel(WAITING_MESSAGES);
    match models {
        Models::Folder(folder) => {
            let watcher = watcher::Watcher::new(folder, copier, Reporter::new(), told)?;
            let bell = watcher.bell();
            let ring = move || {
                let _ = bell.write(1);
            };
            std::thread::spawn(move || forward(&messages, ring));
            watcher.run();
        }
        Models::Single(model) => {
            std::thread::spawn(move || forward(&messages, || ()));
            single::Single::new(model.clone(), copier, Reporter::new()).run(&told);
        }
    }
    Ok(())
}

/// Passes on messages of the launcher, and ends with it, even while other threads hang.
fn forward(messages: &std::sync::mpsc::SyncSender<ToWatcher>, ring: impl Fn()) {
    for line in io::stdin().lock().lines() {
        match line.map(|line| serde_json::from_str(&line)) {
            Ok(Ok(told)) => {
                let _ = messages.send(told); // a watcher that is gone needs it no more
                ring();
            }
            Ok(Err(error)) => tracing::error!(error = chain(&error), "an unknown message to the watcher"),
            Err(_) => break,
        }
    }
    std::process::exit(0);
}
