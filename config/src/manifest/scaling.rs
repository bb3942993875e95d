//! `[scaling]` and `[timeouts]`: how many instances there are, how busy, and how long anything may take.
//!
//! Read by [`super::Manifest::parse`]; applied by the scheduler.

use std::time::Duration;

use serde::Serialize;

use crate::kind::{duration, number};
use crate::reader::Section;

/// `[scaling]`: how many instances, how busy, how long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Scaling {
    /// Instances kept without requests; 0: started by the first request.
    pub min_instances: u32,
    /// Most instances at a time.
    pub max_instances: u32,
    /// Requests in flight per instance.
    pub concurrency: u32,
    /// An instance without requests for this long is stopped, down to `min_instances`.
    #[serde(serialize_with = "crate::duration::serialize")]
    pub idle_timeout: Duration,
    /// Requests that wait; the next one is refused.
    pub queue: u32,
    /// The highest priority that a request may ask for; 0 is the lowest.
    pub priority: u8,
}

impl Default for Scaling {
    fn default() -> Self {
        Self {
            min_instances: 0,
            max_instances: 1,
            concurrency: 1,
            idle_timeout: Duration::from_mins(10),
            queue: 128,
            priority: 0,
        }
    }
}

impl Scaling {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let default = Self::default();
        Self {
            min_instances: section.get("min-instances", number(0..=1024), default.min_instances),
            max_instances: section.get("max-instances", number(1..=1024), default.max_instances),
            concurrency: section.get("concurrency", number(1..=1024), default.concurrency),
            idle_timeout: section.get("idle-timeout", duration, default.idle_timeout),
            queue: section.get("queue", number(0..=100_000), default.queue),
            priority: section.get("priority", |value| number(0..=9)(value).map(|level| level as u8), default.priority),
        }
    }
}

/// `[timeouts]`: how long anything may take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Timeouts {
    /// From the start of the process until the model says it is ready.
    #[serde(serialize_with = "crate::duration::serialize")]
    pub startup: Duration,
    /// From the arrival of a request until its answer is complete, waiting included.
    #[serde(serialize_with = "crate::duration::serialize")]
    pub request: Duration,
    /// Time that requests in flight get to finish when the instance is stopped.
    #[serde(serialize_with = "crate::duration::serialize")]
    pub drain: Duration,
    /// A handler that ignores its cancellation for this long costs the instance its place.
    #[serde(serialize_with = "crate::duration::serialize")]
    pub cancel_grace: Duration,
    /// An instance that has been idle for this long is checked, and must answer within the same time.
    #[serde(serialize_with = "crate::duration::serialize")]
    pub healthcheck: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            startup: Duration::from_mins(2),
            request: Duration::from_mins(1),
            drain: Duration::from_secs(30),
            cancel_grace: Duration::from_secs(5),
            healthcheck: Duration::from_secs(30),
        }
    }
}

impl Timeouts {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let default = Self::default();
        Self {
            startup: section.get("startup", duration, default.startup),
            request: section.get("request", duration, default.request),
            drain: section.get("drain", duration, default.drain),
            cancel_grace: section.get("cancel-grace", duration, default.cancel_grace),
            healthcheck: section.get("healthcheck", duration, default.healthcheck),
        }
    }
}
