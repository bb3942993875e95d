//! Client of systemd's manager over the system bus: starts and stops units, and waits for their jobs. Used by
//! [`crate::systemd`].
//!
//! All callers share one connection, made when it is needed. A thread of its own makes it and then receives the ends of
//! jobs; the callers wait for it. Invariants: each wait, for the connection, for an answer and for a job, ends after
//! [`WITHIN`], also where the bus hangs; and a connection that did not answer is given up. The first call leaves
//! threads in the process, which must not clone a sandbox any more.

use crate::Error;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use zbus::blocking::connection::Builder;
use zbus::blocking::{Connection, MessageIterator};
use zbus::zvariant::{DynamicType, OwnedObjectPath, Value};

/// Socket of the system bus (D-Bus specification, "System message bus").
pub(crate) const SOCKET: &str = "/run/dbus/system_bus_socket";
/// Bound of each step.
const WITHIN: Duration = Duration::from_secs(15);
/// Longest time that a name may still belong to the unit before.
const NAME_WITHIN: Duration = Duration::from_secs(5);
const NAME_AGAIN: Duration = Duration::from_millis(20);
/// Most signals that may wait to be read.
const SIGNALS: usize = 4096;

const MANAGER: &str = "org.freedesktop.systemd1";
const UNIT_EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";

/// Properties of a unit.
pub(crate) type Properties<'a> = Vec<(&'a str, Value<'a>)>;

/// State of the connection.
#[derive(Debug, Clone)]
pub(crate) struct Bus(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    socket: PathBuf,
    within: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    link: Link,
    /// Results of ended jobs, of the units that a caller waits for.
    ended: BTreeMap<String, Vec<(String, String)>>,
}

#[derive(Debug, Default)]
enum Link {
    #[default]
    Down,
    Opening,
    Failed(zbus::Error),
    Up(Arc<Line>),
}

impl Link {
    fn is(&self, line: &Arc<Line>) -> bool {
        matches!(self, Self::Up(up) if Arc::ptr_eq(up, line))
    }
}

/// Connection that several callers may use at the same time.
#[derive(Debug)]
struct Line {
    connection: Connection,
    /// A caller got no answer in time and closed it: that is why it ended, for the others too.
    silent: AtomicBool,
}

impl Bus {
    /// Client of the machine's system bus.
    pub(crate) fn system() -> Self {
        Self::at(Path::new(SOCKET), WITHIN)
    }

    /// Client of a bus at this socket, with a bound for each wait.
    fn at(socket: &Path, within: Duration) -> Self {
        Self(Arc::new(Shared { socket: socket.to_owned(), within, state: Mutex::default(), changed: Condvar::new() }))
    }

    /// Starts a scope with these properties, and waits until it is there.
    pub(crate) fn start_scope(&self, unit: &str, properties: &Properties<'_>) -> Result<(), Error> {
        let auxiliary: Vec<(&str, Properties<'_>)> = Vec::new();
        let until = Instant::now() + NAME_WITHIN;
        loop {
            // A scope of the same name that has just ended may not be forgotten yet.
            match self.job(unit, "StartTransientUnit", &(unit, "fail", properties, &auxiliary)) {
                Err(Error::Systemd { source, .. }) if is(&source, UNIT_EXISTS) && Instant::now() < until => {
                    thread::sleep(NAME_AGAIN);
                }
                ended => return ended,
            }
        }
    }

    /// Stops a unit, unless that contradicts what systemd is about to do. An absent unit is a success.
    pub(crate) fn stop(&self, unit: &str) -> Result<(), Error> {
        match self.job(unit, "StopUnit", &(unit, "fail")) {
            Err(Error::Systemd { source, .. }) if is(&source, NO_SUCH_UNIT) => Ok(()),
            ended => ended,
        }
    }

    /// Sets properties until the unit ends.
    pub(crate) fn set(&self, unit: &str, properties: &Properties<'_>) -> Result<(), Error> {
        let line = self.line(unit)?;
        self.call(&line, unit, "SetUnitProperties", &(unit, true, properties)).map(drop)
    }

    /// Calls a method that starts a job, and waits for its end.
    fn job<B: serde::Serialize + DynamicType>(&self, unit: &str, method: &'static str, body: &B) -> Result<(), Error> {
        let line = self.line(unit)?;
        // Before the call: the job may end before its number is known here.
        self.lock().ended.insert(unit.to_owned(), Vec::new());
        let result = self.call(&line, unit, method, body).and_then(|answer| {
            let job: OwnedObjectPath = answer.body().deserialize().map_err(failed(method, unit))?;
            self.wait_for(&line, unit, job.as_str())
        });
        self.lock().ended.remove(unit);
        result
    }

    fn wait_for(&self, line: &Arc<Line>, unit: &str, job: &str) -> Result<(), Error> {
        let result = self.wait_until(unit, |state| {
            if let Some((_, result)) = state.ended.get(unit)?.iter().find(|(ended, _)| ended == job) {
                return Some(Ok(result.clone()));
            }
            if state.link.is(line) { None } else { Some(Err(self.end_of(line, unit))) }
        })?;
        if result == "done" { Ok(()) } else { Err(Error::Job { unit: unit.to_owned(), result }) }
    }

    fn call<B: serde::Serialize + DynamicType>(
        &self,
        line: &Arc<Line>,
        unit: &str,
        method: &'static str,
        body: &B,
    ) -> Result<zbus::Message, Error> {
        let manager = Some("org.freedesktop.systemd1.Manager");
        let answer = line.connection.call_method(Some(MANAGER), "/org/freedesktop/systemd1", manager, method, body);
        answer.map_err(|error| {
            if !matches!(error, zbus::Error::InputOutput(_)) {
                return failed(method, unit)(error);
            }
            if timed_out(&error) {
                line.silent.store(true, Ordering::Release);
            }
            let mut state = self.lock();
            if state.link.is(line) {
                state.link = Link::Down;
            }
            drop(state);
            // Even if closing fails: the next caller has another connection.
            let _ = line.connection.clone().close();
            self.0.changed.notify_all();
            self.end_of(line, unit)
        })
    }

    /// Reason why a connection has ended. Requests sent over it may still be carried out.
    fn end_of(&self, line: &Line, unit: &str) -> Error {
        if line.silent.load(Ordering::Acquire) { self.silence(unit) } else { Error::BusLost { unit: unit.to_owned() } }
    }

    /// Returns the connection, made if there is none. Only one attempt is made at a time, however many callers wait for
    /// it.
    fn line(&self, unit: &str) -> Result<Arc<Line>, Error> {
        let mut state = self.lock();
        if let Link::Down | Link::Failed(_) = state.link {
            let shared = Arc::clone(&self.0);
            let spawned = thread::Builder::new().name("bus".into()).spawn(move || shared.serve());
            spawned.map_err(Error::io("start a thread for", &self.0.socket))?;
            state.link = Link::Opening;
        }
        drop(state);
        self.wait_until(unit, |state| match &state.link {
            Link::Opening => None,
            Link::Up(line) => Some(Ok(Arc::clone(line))),
            Link::Failed(error) if timed_out(error) => Some(Err(self.silence(unit))),
            Link::Failed(error) => Some(Err(Error::NoBus { unit: unit.to_owned(), source: Box::new(error.clone()) })),
            Link::Down => Some(Err(Error::BusLost { unit: unit.to_owned() })),
        })
    }

    fn wait_until<T>(&self, unit: &str, look: impl Fn(&State) -> Option<Result<T, Error>>) -> Result<T, Error> {
        let until = Instant::now() + self.0.within;
        let mut state = self.lock();
        loop {
            if let Some(found) = look(&state) {
                return found;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.silence(unit));
            }
            state = self.0.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn silence(&self, unit: &str) -> Error {
        Error::BusSilent { unit: unit.to_owned(), waited: self.0.within }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Thread of the connection: connects, then receives ends of jobs until the connection ends.
    fn serve(&self) {
        let (connection, jobs) = match self.open() {
            Ok(opened) => opened,
            Err(error) => {
                self.lock().link = Link::Failed(error);
                return self.changed.notify_all();
            }
        };
        let line = Arc::new(Line { connection, silent: AtomicBool::new(false) });
        self.lock().link = Link::Up(Arc::clone(&line));
        self.changed.notify_all();
        for message in jobs {
            let Ok(message) = message else { break };
            let Ok((_, job, unit, result)) = message.body().deserialize::<(u32, OwnedObjectPath, String, String)>()
            else {
                continue;
            };
            if let Some(ended) = self.lock().ended.get_mut(&unit) {
                ended.push((job.to_string(), result));
                self.changed.notify_all();
            }
        }
        let mut state = self.lock();
        // Another connection may be in use by now.
        if state.link.is(&line) {
            state.link = Link::Down;
        }
        drop(state);
        self.changed.notify_all();
    }

    fn open(&self) -> Result<(Connection, MessageIterator), zbus::Error> {
        let address = format!("unix:path={}", self.socket.display());
        let connection = Builder::address(address.as_str())?.method_timeout(self.within).build()?;
        let rule = format!("type='signal',sender='{MANAGER}',interface='{MANAGER}.Manager',member='JobRemoved'");
        let jobs = MessageIterator::for_match_rule(rule.as_str(), &connection, Some(SIGNALS))?;
        let manager = Some("org.freedesktop.systemd1.Manager");
        connection.call_method(Some(MANAGER), "/org/freedesktop/systemd1", manager, "Subscribe", &())?;
        Ok((connection, jobs))
    }
}

fn is(error: &zbus::Error, name: &str) -> bool {
    matches!(error, zbus::Error::MethodError(found, ..) if found.as_str() == name)
}

fn timed_out(error: &zbus::Error) -> bool {
    matches!(error, zbus::Error::InputOutput(io) if io.kind() == std::io::ErrorKind::TimedOut)
}

fn failed(action: &'static str, unit: &str) -> impl FnOnce(zbus::Error) -> Error {
    let unit = unit.to_owned();
    move |source| Error::Systemd { action, unit, source: Box::new(source) }
}

#[cfg(test)]
mod tests;
