//! Recorder of usage, by the node's configuration.

use crate::args::Directories;
use nix::unistd::{User, geteuid};
use omni_auth::secret::{self, SecretError};
use omni_config::node::{NodeConfig, Sink, WhenFull};
use omni_sink::InvalidSink;
use omni_usage::{HttpSink, UsageRecorder, UsageSettings, UsageSink};
use std::io;
use std::sync::Arc;

/// The sink of the configuration; `None`: there is none.
///
/// # Errors
/// The certificates that its server is checked with, or its token, cannot be read.
pub fn sink(config: &NodeConfig) -> Result<Option<UsageSink>, SinkError> {
    let usage = &config.usage;
    Ok(match &usage.sink {
        None => None,
        Some(Sink::File(path)) => Some(UsageSink::File(path.clone())),
        Some(Sink::Url(url)) => {
            let read = |file| secret::read("token of the usage sink", file).map(|(path, _)| path);
            let token = usage.token.as_ref().map(read).transpose()?;
            Some(UsageSink::Http(HttpSink::new(url.clone(), token, usage.authorities.as_deref())?))
        }
    })
}

/// A sink that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// Certificates that cannot be used.
    #[error("`usage.sink` cannot be used")]
    Certificates(#[from] InvalidSink),
    /// Token that cannot be read.
    #[error(transparent)]
    Token(#[from] SecretError),
}

/// Opens the recorder.
pub(crate) fn open(
    config: &NodeConfig,
    directories: &Directories,
    sink: Option<UsageSink>,
) -> io::Result<Arc<UsageRecorder>> {
    if let Some(Err(error)) = sink.as_ref().map(UsageSink::check) {
        let user = user_name();
        tracing::warn!(
            error,
            user,
            "records of usage cannot be written to `sink` of [usage], and are kept and tried again: the node's user \
             `{user}` has to be able to write the file, and to make it in its folder"
        );
    }
    let when_full = match config.usage.when_full {
        WhenFull::Lose => omni_usage::WhenFull::Lose,
        WhenFull::Refuse => omni_usage::WhenFull::Refuse,
    };
    let (spool, log) = (directories.own_runtime().join("usage"), directories.own_state().join("usage"));
    let settings = UsageSettings { spool, log, keep: config.usage.keep.bytes(), when_full, sink };
    Ok(Arc::new(UsageRecorder::open(settings)?))
}

/// Name of this process's user, or its number.
fn user_name() -> String {
    let uid = geteuid();
    User::from_uid(uid).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name)
}
