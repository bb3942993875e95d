//! Launcher's side of the watcher: starts it, starts it again when it has ended, and passes its reports to the main
//! loop.

use super::folder::open;
use super::protocol::{FromWatcher, ToWatcher};
use super::{TROUBLE, WatchError};
use crate::event::{Event, Events, ModelState};
use crate::settings::Settings;
use omni_config::Models;
use omni_log::chain;
use omni_snapshot::Store;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long to wait before the next watcher.
const PAUSE: Duration = Duration::from_secs(1);

/// Running watcher process, with what it takes to start the next one.
pub(crate) struct Watch {
    arguments: Vec<OsString>,
    models: Models,
    store: Arc<Store>,
    events: Events,
    line: Arc<Mutex<Line>>,
    /// Directories that the main loop knows.
    known: BTreeSet<String>,
}

/// How long the watcher is waited for when the launcher ends: one that the kernel holds stays, and holds nothing itself.
const END: Duration = Duration::from_secs(1);
/// How often it is asked whether it has ended.
const ASK: Duration = Duration::from_millis(5);

/// Input of the running watcher.
#[derive(Default)]
struct Line {
    to: Option<ChildStdin>,
    /// There is one.
    runs: bool,
    /// There is to be none any more.
    ends: bool,
    /// A look at a single model was asked for and has not ended.
    wanted: bool,
}

impl Line {
    fn send(&mut self, told: &ToWatcher) {
        let Ok(mut line) = serde_json::to_vec(told) else { return };
        line.push(b'\n');
        if let Some(to) = &mut self.to {
            let _ = to.write_all(&line); // one that has ended is followed by another, which begins anew
        }
    }
}

/// The main loop's end: it says when a scheduler has come that does not know yet what there is.
pub(crate) struct RescanHandle(Option<Arc<Mutex<Line>>>);

impl RescanHandle {
    /// Requests a new look at a single model's directory; returns whether everything will be reported again.
    pub(crate) fn again(&self) -> bool {
        let Some(line) = &self.0 else { return false };
        let mut line = locked(line);
        line.wanted = true;
        line.send(&ToWatcher::Look);
        true
    }
}

/// The end of the watcher, which comes before the launcher's.
pub(crate) struct End(Arc<Mutex<Line>>);

impl End {
    /// Ends the watcher, and waits for it as long as is sensible.
    pub(crate) fn end(self) {
        {
            let mut line = locked(&self.0);
            (line.to, line.ends) = (None, true);
        }
        let deadline = Instant::now() + END;
        while locked(&self.0).runs && Instant::now() < deadline {
            thread::sleep(ASK);
        }
    }
}

/// Each change to a line is one step.
fn locked(line: &Mutex<Line>) -> MutexGuard<'_, Line> {
    line.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    /// With the main loop's end. Checks that a folder is there; nothing is read yet.
    pub(crate) fn new(
        settings: &Settings,
        store: Arc<Store>,
        events: Events,
    ) -> Result<(Self, RescanHandle), WatchError> {
        let models = settings.models.clone();
        if let Models::Folder(folder) = &models {
            open(folder).map_err(|source| WatchError::Folder { path: folder.clone(), source })?;
        }
        let bounds = &settings.config.snapshots;
        let mut arguments = vec!["--watcher".into(), format!("{}:{}", bounds.files, bounds.bytes.bytes()).into()];
        let flag = if models.single().is_some() { "--model" } else { "--models" };
        arguments.extend([flag.into(), models.path().into(), "--state-dir".into(), settings.state_dir.clone().into()]);
        arguments.extend(settings.log_format.iter().flat_map(|form| ["--log-format".into(), form.into()]));
        let line = Arc::new(Mutex::new(Line::default()));
        let rescan = RescanHandle(models.single().map(|_| Arc::clone(&line)));
        Ok((Self { arguments, models, store, events, line, known: BTreeSet::new() }, rescan))
    }

    /// For the launcher's end.
    pub(crate) fn end(&self) -> End {
        End(Arc::clone(&self.line))
    }

    /// Runs until the main loop is gone.
    pub(crate) fn run(mut self) {
        while !locked(&self.line).ends {
            match self.spawn() {
                Ok(child) => {
                    if !self.follow(child) {
                        return;
                    }
                }
                Err(error) => {
                    tracing::error!(error = chain(&error), "the watcher of the models folder cannot be started");
                }
            }
            thread::sleep(PAUSE);
            if let Err(error) = self.store.remove_copies() {
                tracing::warn!(error = chain(&error), "half-made copies are left in the store of snapshots");
            }
        }
    }

    /// Starts this program, even if its file is another one by now.
    fn spawn(&self) -> std::io::Result<Child> {
        let name = std::env::args_os().next().unwrap_or_default();
        Command::new("/proc/self/exe")
            .arg0(name)
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
    }

    /// Hears a watcher to its end. `false` when the main loop is gone.
    fn follow(&mut self, mut child: Child) -> bool {
        {
            let mut line = locked(&self.line);
            if line.ends {
                return false; // its input ends here, and so does it
            }
            (line.to, line.runs) = (child.stdin.take(), true);
            if line.wanted {
                line.send(&ToWatcher::Look);
            }
        }
        let mut said = BTreeSet::new();
        for line in child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines()) {
            let Ok(line) = line else { break };
            let goes_on = match serde_json::from_str(&line) {
                Ok(FromWatcher::Taken { name, copy, snapshot, manifest }) => {
                    said.insert(name.clone());
                    self.taken(name, copy, ModelState::Taken { snapshot, manifest })
                }
                Ok(FromWatcher::Refused { name, message, no_model }) => {
                    said.insert(name.clone());
                    let state =
                        if no_model { ModelState::NoModel { message } } else { ModelState::Refused { message } };
                    self.send(name, state)
                }
                Ok(FromWatcher::Gone { name }) => {
                    said.remove(&name);
                    self.send(name, ModelState::Gone)
                }
                Ok(FromWatcher::Scanned) => self.scanned(&said),
                Err(error) => {
                    tracing::error!(error = chain(&error), "an unknown message of the watcher");
                    true
                }
            };
            if !goes_on {
                return false; // its input ends with this process, and so does it
            }
        }
        locked(&self.line).to = None;
        let ended = child.wait();
        let ends = {
            let mut line = locked(&self.line);
            line.runs = false;
            line.ends
        };
        match ended {
            _ if ends => return false,
            Ok(status) => {
                tracing::error!(%status, "the watcher of the models folder has ended: another one begins anew");
            }
            Err(error) => tracing::error!(%error, "the watcher of the models folder cannot be waited for"),
        }
        true
    }

    fn send(&mut self, name: String, state: ModelState) -> bool {
        if state == ModelState::Gone {
            self.known.remove(&name);
        } else {
            self.known.insert(name.clone());
        }
        self.events.send(Event::Model { name, state })
    }

    /// A model that an earlier watcher has reported and this one has not is gone.
    fn scanned(&mut self, said: &BTreeSet<String>) -> bool {
        locked(&self.line).wanted = false;
        let gone: Vec<_> = self.known.difference(said).cloned().collect();
        gone.into_iter().all(|name| self.send(name, ModelState::Gone)) && self.events.send(Event::Scanned)
    }

    /// A copy was made, or what is in the store already is right. Until the main loop knows of it, it is held.
    fn taken(&mut self, name: String, copy: Option<String>, state: ModelState) -> bool {
        let ModelState::Taken { snapshot, .. } = &state else { return true };
        let Some(copy) = copy else {
            if self.store.hold(snapshot) {
                return self.send(name, state);
            }
            locked(&self.line).send(&ToWatcher::Again { name });
            return true;
        };
        while let Err(error) = self.store.adopt(&copy, snapshot) {
            let message = chain(&error);
            if self.models.single().is_none() {
                let _ = self.store.discard(&copy); // what is left goes when the store is next opened
                locked(&self.line).send(&ToWatcher::Again { name: name.clone() });
                return self.send(name, ModelState::Refused { message });
            }
            // Trouble of the node's own says nothing of its only model.
            tracing::warn!(error = message, "a snapshot cannot be put into the store: trying again");
            thread::sleep(TROUBLE);
        }
        self.send(name, state)
    }
}
