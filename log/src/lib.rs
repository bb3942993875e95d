//! The daemons' own log: text on a terminal, fields in systemd's journal, JSON lines otherwise.
//!
//! Scheduler and launcher call [`start`] once, before anything else. One line per event; an error is in it once, with
//! its [`chain`] of causes. Output of models is an event of the target [`MODEL`], and goes to the journal under an
//! identifier of its own.

mod kind;

pub use kind::Kind;

use clap::ValueEnum;
use nix::sys::stat::fstat;
use std::env;
use std::error::Error;
use std::io::{self, IsTerminal, stderr};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

/// Target of events that carry a model's output.
pub const MODEL: &str = "model";
/// The identifier that these have in the journal.
const MODEL_IDENTIFIER: &str = "omni-model";

/// How events are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Lines for people.
    Text,
    /// Lines of JSON.
    Json,
    /// Fields, sent to systemd's journal.
    Journal,
}

/// Starts the log of the program `identifier`. Without a format, the reader of standard error decides: a terminal, the
/// journal, or anything else. `OMNI_LOG` filters, in the syntax of `tracing_subscriber::EnvFilter`.
pub fn start(format: Option<Format>, identifier: &str) {
    let format = format.unwrap_or_else(|| match stderr().is_terminal() {
        true => Format::Text,
        false if is_journal(env::var("JOURNAL_STREAM").ok().as_deref()) => Format::Journal,
        false => Format::Json,
    });
    kind::with_numbers(format != Format::Text);
    let filter = EnvFilter::try_from_env("OMNI_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::registry().with(filter);
    let lines = || fmt::layer().with_writer(stderr);
    let json = || lines().json().flatten_event(true).with_current_span(false);
    match format {
        Format::Text => log.with(lines().with_target(false).with_ansi(stderr().is_terminal())).init(),
        Format::Json => log.with(json()).init(),
        Format::Journal => match journal(identifier) {
            Ok(journal) => log.with(journal).init(),
            Err(error) => {
                log.with(json()).init();
                tracing::warn!(%error, "the journal cannot be reached by its socket: it gets lines instead of fields");
            }
        },
    }
}

/// An error and its causes in one line: `what: why: why`.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Fields have the names that they have here, in capitals, as systemd's own: `journalctl MODEL=cowsay`.
fn journal<S: Subscriber + for<'a> LookupSpan<'a>>(identifier: &str) -> io::Result<impl Layer<S> + use<S>> {
    let layer = |identifier: &str| {
        Ok::<_, io::Error>(
            tracing_journald::layer()?.with_field_prefix(None).with_syslog_identifier(identifier.to_owned()),
        )
    };
    let is_model = |event: &Metadata<'_>| event.target() == MODEL;
    let models = layer(MODEL_IDENTIFIER)?.with_filter(filter_fn(is_model));
    let own = layer(identifier)?.with_filter(filter_fn(move |event| !is_model(event)));
    Ok(own.and_then(models))
}

/// Returns true if standard error is the journal's stream: systemd passes device and file of the stream that it gave us
/// (systemd.exec(5), `$JOURNAL_STREAM`), and the parent process may have put another in its place.
fn is_journal(given: Option<&str>) -> bool {
    let Some((device, file)) = given.and_then(|given| given.split_once(':')) else { return false };
    let Ok(stat) = fstat(stderr()) else { return false };
    (device, file) == (&*stat.st_dev.to_string(), &*stat.st_ino.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt;

    #[test]
    fn the_journal_is_known_by_its_stream() {
        let stat = fstat(stderr()).unwrap();
        assert!(is_journal(Some(&format!("{}:{}", stat.st_dev, stat.st_ino))));
        for other in ["", "1", "1:", ":", "a:b", &format!("{}:{}", stat.st_dev, stat.st_ino + 1)] {
            assert!(!is_journal(Some(other)), "{other}");
        }
        assert!(!is_journal(None));
    }

    #[test]
    fn an_error_is_one_line_with_its_causes() {
        #[derive(Debug)]
        struct Unwritten(io::Error);
        impl fmt::Display for Unwritten {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the record is not written")
            }
        }
        impl Error for Unwritten {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&self.0)
            }
        }
        let cause = Unwritten(io::Error::other("the disk is full"));
        assert_eq!(chain(&cause), "the record is not written: the disk is full");
        assert_eq!(chain(&cause.0), "the disk is full");
    }
}
