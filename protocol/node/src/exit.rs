//! End of an instance, as the worker determined it and the scheduler reports it.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Why the processes of an instance are gone. Exactly one of these is true of every end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "kebab-case")]
pub enum ExitCause {
    /// The engine returned this exit code.
    Exited {
        /// 0 to 255.
        code: i32,
    },
    /// A signal ended the engine.
    Signaled {
        /// The signal's number.
        signal: i32,
    },
    /// The kernel killed a process of the instance for want of memory; the rest was ended with it.
    OomKilled,
    /// The sandbox could not be made; no model code ran.
    StartFailed {
        /// The step that failed and the kernel's answer.
        message: String,
    },
    /// The worker itself is gone: the end was not observed.
    WorkerLost,
}

impl fmt::Display for ExitCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited { code } => write!(f, "exited with code {code}"),
            Self::Signaled { signal } => match signal_name(*signal) {
                Some(name) => write!(f, "killed by {name}"),
                None => write!(f, "killed by signal {signal}"),
            },
            Self::OomKilled => f.write_str("killed for exceeding its memory limit"),
            Self::StartFailed { message } => write!(f, "could not be started: {message}"),
            Self::WorkerLost => f.write_str("lost together with its worker"),
        }
    }
}

/// The usual name of a signal, for the signals that end processes in practice.
fn signal_name(signal: i32) -> Option<&'static str> {
    nix::sys::signal::Signal::try_from(signal).ok().map(nix::sys::signal::Signal::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_reads_as_a_sentence() {
        let causes = [
            (ExitCause::Exited { code: 3 }, "exited with code 3"),
            (ExitCause::Signaled { signal: 6 }, "killed by SIGABRT"),
            (ExitCause::Signaled { signal: 9 }, "killed by SIGKILL"),
            (ExitCause::Signaled { signal: 64 }, "killed by signal 64"),
            (ExitCause::OomKilled, "killed for exceeding its memory limit"),
            (ExitCause::WorkerLost, "lost together with its worker"),
        ];
        for (cause, text) in causes {
            assert_eq!(cause.to_string(), text);
        }
    }
}
