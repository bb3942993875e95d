//! Failures of commands: what happened, the exit code, and a hint.
//!
//! Returned by the commands, printed once, by `main`. Invariants: a message names the model or file it is about; a hint
//! is something the reader can do.

use std::io;
use std::path::PathBuf;

use omni_config::{ModelName, NameError};

use crate::client::{ClientError, MODELS_UNKNOWN, NOT_ALLOWED};
use crate::exit::Exit;

/// Why a command did not succeed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The daemon was not reached, or not understood.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The node does not have the model.
    #[error("{detail}")]
    NoSuchModel {
        /// The daemon's message, which names the model.
        detail: String,
        /// Models with a similar name, the nearest first.
        near: Vec<String>,
    },
    /// The daemon refused something about a model that exists.
    #[error("model `{model}`: {detail}")]
    Refused {
        /// The model.
        model: ModelName,
        /// HTTP status.
        status: u16,
        /// The daemon's message.
        detail: String,
    },
    /// The model failed while a command waited for it to be ready.
    #[error("model `{model}` did not become ready: {reason}")]
    NotReady {
        /// The model.
        model: ModelName,
        /// Why, in one line.
        reason: String,
    },
    /// The environment or the weights of a model cannot be had; found while a command waited for them.
    #[error("the environment and the weights of model `{model}` are not there: {reason}")]
    NotPrepared {
        /// The model.
        model: ModelName,
        /// Why, in one line.
        reason: String,
    },
    /// A version cannot serve; found while a command waited for it.
    #[error("version {version} of model `{model}` does not serve: {reason}")]
    NotServed {
        /// The model.
        model: ModelName,
        /// The first digits of the version.
        version: String,
        /// Why, in one line.
        reason: String,
        /// The version that serves on.
        serving: Option<String>,
    },
    /// The model was stopped by hand, so that nothing of it starts.
    #[error("model `{model}` was stopped by hand: the version is there and not started")]
    Held {
        /// The model.
        model: ModelName,
    },
    /// A rollback chose another version than the one that was published.
    #[error("model `{model}` serves version {to} since a rollback, and this content does not end that")]
    Pinned {
        /// The model.
        model: ModelName,
        /// Version that the rollback chose.
        to: String,
        /// Version that is published.
        version: String,
    },
    /// Another version was published, or chosen, while a command waited.
    #[error("another version of model `{model}` took the place of this one meanwhile")]
    Replaced {
        /// The model.
        model: ModelName,
    },
    /// Nothing was published.
    #[error("model `{model}` is not published: {reason}")]
    NotPublished {
        /// The model.
        model: ModelName,
        /// Why, and what to do.
        reason: String,
    },
    /// `--timeout` passed.
    #[error("model `{model}` is still {state} after {limit}")]
    TimedOut {
        /// The model.
        model: ModelName,
        /// The state it is in.
        state: &'static str,
        /// The limit, as it was written.
        limit: String,
    },
    /// A stream that reported an error, or ended early.
    #[error("model `{model}`: {reason}")]
    Stream {
        /// The model.
        model: ModelName,
        /// The daemon's reason, or ours.
        reason: String,
    },
    /// Bytes that would garble a terminal.
    #[error("model `{model}` answered with {media_type}, which is not for a terminal")]
    BinaryToTerminal {
        /// The model.
        model: ModelName,
        /// Media type of the answer.
        media_type: String,
    },
    /// Input that cannot be sent.
    #[error("{0}")]
    Input(String),
    /// A file or folder of the caller's.
    #[error("cannot {verb} {}", path.display())]
    File {
        /// "read", "write", "create".
        verb: &'static str,
        /// Which one.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A text that is not a model's name.
    #[error("`{text}` is not a name for a model")]
    Name {
        /// The text.
        text: String,
        /// Why not.
        #[source]
        source: NameError,
    },
    /// `init` would write over something.
    #[error("{} is there already", .0.display())]
    Exists(PathBuf),
    /// `check` found something; the findings are printed already.
    #[error("{}", match .0 { 1 => "1 problem found".to_owned(), count => format!("{count} problems found") })]
    Findings(usize),
    /// `doctor` found that something is missing; the lines are printed already.
    #[error("this machine cannot serve models: mend what is missing")]
    Unfit,
    /// `doctor` could not try something that is needed.
    #[error("cannot tell whether this machine can serve models: a required check was not possible")]
    Untold,
    /// A value could not be put into the form asked for.
    #[error("cannot write the answer down")]
    Render(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Standard output.
    #[error("cannot write to standard output")]
    Output(#[source] io::Error),
    /// The runtime or a signal handler could not be made.
    #[error("cannot start")]
    Start(#[source] io::Error),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

impl Failure {
    /// The exit code.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Client(error) => client_exit(error),
            Self::NoSuchModel { .. } => Exit::NoSuchModel,
            Self::Refused { status, .. } => status_exit(*status),
            Self::NotReady { .. }
            | Self::NotPrepared { .. }
            | Self::NotServed { .. }
            | Self::Held { .. }
            | Self::Pinned { .. } => Exit::NotReady,
            Self::TimedOut { .. } => Exit::TimedOut,
            Self::Unfit => Exit::Unfit,
            Self::Input(_) | Self::Name { .. } => Exit::Usage,
            Self::Interrupted => Exit::Interrupted,
            // `| head` has read enough; not a failure.
            Self::Output(source) if source.kind() == io::ErrorKind::BrokenPipe => Exit::Ok,
            Self::Stream { .. }
            | Self::BinaryToTerminal { .. }
            | Self::File { .. }
            | Self::Exists(_)
            | Self::Findings(_)
            | Self::Replaced { .. }
            | Self::NotPublished { .. }
            | Self::Untold
            | Self::Render(_)
            | Self::Output(_)
            | Self::Start(_) => Exit::Failed,
        }
    }

    /// Returns true if no message is printed: the reader went away, or interrupted the command.
    pub(crate) fn is_silent(&self) -> bool {
        matches!(self.exit(), Exit::Ok | Exit::Interrupted)
    }

    /// Advice for the reader.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Client(error) => client_hint(error).map(str::to_owned),
            Self::NoSuchModel { near, .. } => Some(near_hint(near)),
            Self::Refused { model, status, .. } => refused_hint(model, *status),
            Self::NotReady { model, .. } | Self::TimedOut { model, .. } => {
                Some(format!("`omnictl status {model}` shows the reason, `omnictl logs {model}` its output"))
            }
            Self::NotPrepared { model, .. } => Some(format!(
                "`omnictl status {model}` shows the reason, `omnictl logs {model}` the output; `omnictl pull {model}` tries again"
            )),
            Self::NotServed { model, serving: Some(serving), .. } => Some(format!(
                "version {serving} still serves; `omnictl status {model}` shows more, `omnictl restart {model}` tries again"
            )),
            Self::NotServed { model, serving: None, .. } => {
                Some(format!("`omnictl status {model}` shows more, `omnictl logs {model}` its output"))
            }
            Self::Held { model } => Some(format!("`omnictl start {model}` starts it")),
            Self::Pinned { model, version, .. } => Some(format!("`omnictl rollback {model} --to {version}` ends it")),
            Self::Replaced { model } => Some(format!("`omnictl status {model}` shows which one")),
            Self::Stream { model, .. } => Some(format!("`omnictl logs {model}` shows the model's output")),
            Self::BinaryToTerminal { .. } => Some("write it to a file with `--out FILE`, or pipe it on".to_owned()),
            Self::Name { .. } => {
                Some("a name is a path below the models folder, such as `cowsay` or `@cf/x`".to_owned())
            }
            Self::Exists(_) => Some("choose another name, or another folder with `--dir`".to_owned()),
            Self::Input(_)
            | Self::File { .. }
            | Self::NotPublished { .. }
            | Self::Findings(_)
            | Self::Unfit
            | Self::Untold
            | Self::Render(_)
            | Self::Output(_)
            | Self::Start(_)
            | Self::Interrupted => None,
        }
    }
}

fn client_exit(error: &ClientError) -> Exit {
    match error {
        ClientError::NotThere(_)
        | ClientError::Permission(_)
        | ClientError::NobodyListens(_)
        | ClientError::Connect { .. }
        | ClientError::Broken(_)
        | ClientError::Mute(_) => Exit::Unreachable,
        ClientError::Body(_) | ClientError::Answer { .. } => Exit::Failed,
        ClientError::Refused(problem) if problem.kind == NOT_ALLOWED => Exit::NotAllowed,
        ClientError::Refused(problem) => status_exit(problem.status),
    }
}

/// The exit code for a status of the daemon's that is not a success.
fn status_exit(status: u16) -> Exit {
    match status {
        503 => Exit::NotReady,
        504 => Exit::TimedOut,
        _ => Exit::Failed,
    }
}

fn client_hint(error: &ClientError) -> Option<&'static str> {
    match error {
        ClientError::NotThere(_) | ClientError::NobodyListens(_) => Some(
            "start the daemon (`make run` in a checkout, or omni-scheduler), or name its socket with `--socket` or $OMNI_SOCKET",
        ),
        ClientError::Permission(_) => Some("use sudo, or become a member of the socket's group"),
        ClientError::Refused(problem) if problem.kind == NOT_ALLOWED => {
            Some("use sudo, or become a member of the group that is named, and log in again")
        }
        ClientError::Refused(problem) if problem.kind == MODELS_UNKNOWN => {
            Some("the launcher's own log tells what it waits for: `journalctl -u omni-launcher`")
        }
        ClientError::Mute(_) => Some("the daemon hangs or the machine is overloaded: look at the daemon's own log"),
        ClientError::Broken(_) => Some("the daemon may have been stopped or restarted meanwhile: try again"),
        ClientError::Answer { .. } => Some("`omnictl version` shows whether omnictl and the daemon belong together"),
        ClientError::Connect { .. } | ClientError::Body(_) | ClientError::Refused(_) => None,
    }
}

fn near_hint(near: &[String]) -> String {
    if near.is_empty() {
        return "`omnictl list` shows the models of this node".to_owned();
    }
    let names: Vec<String> = near.iter().map(|name| format!("`{name}`")).collect();
    format!("did you mean {}?", names.join(" or "))
}

fn refused_hint(model: &ModelName, status: u16) -> Option<String> {
    match status {
        429 => Some(
            "its queue is full: try again in a moment, or raise `scaling.queue` or `scaling.concurrency`".to_owned(),
        ),
        500 | 502 => Some(format!("the traceback or the exit is in `omnictl logs {model}`")),
        503 => Some(format!("`omnictl status {model}` shows the reason")),
        504 => {
            Some("the model took too long: raise `timeouts.request`, or the limit you gave with `--timeout`".to_owned())
        }
        _ => None,
    }
}
