//! The daemon's own log: text on a terminal, JSON lines otherwise; one line per event, errors once with their chain.

use std::error::Error;
use std::fmt::Write as _;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Starts logging to standard error. `OMNI_LOG` filters, in the syntax of `tracing_subscriber::EnvFilter`.
pub fn start() {
    let filter = EnvFilter::try_from_env("OMNI_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() {
        builder.with_target(false).init();
    } else {
        builder.json().flatten_event(true).with_current_span(false).with_span_list(false).init();
    }
}

/// An error and its causes in one line: `what: why: why`.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let _ = write!(text, ": {cause}");
        source = cause.source();
    }
    text
}
