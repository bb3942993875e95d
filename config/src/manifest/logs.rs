//! `[logs]`: which log lines of a model's libraries its log keeps.
//!
//! Read by [`super::Manifest::parse`]; applied by the engine.

use serde::Serialize;

use crate::kind::choice;
use crate::reader::Section;

/// `[logs]`: what is in the model's log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Logs {
    /// Least level that is kept.
    pub libraries: LogLevel,
}

/// A level of Python's `logging`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogLevel {
    /// Everything.
    Debug,
    /// Normal events.
    #[default]
    Info,
    /// Unusual events.
    Warning,
    /// Failures.
    Error,
}

impl LogLevel {
    /// The level as it is written in the manifest.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

impl Logs {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let levels = [LogLevel::Debug, LogLevel::Info, LogLevel::Warning, LogLevel::Error];
        let levels = levels.map(|level| (level.as_str(), level));
        Self { libraries: section.get("libraries", choice(&levels), LogLevel::default()) }
    }
}
