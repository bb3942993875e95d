//! `[tracing]` of the node's configuration: spans of requests to a collector.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use toml::de::DeValue;

use super::secret::{SecretFile, secret};
use super::usage::server_url;
use crate::kind::{Mismatch, absolute_path, duration, fraction};
use crate::reader::Section;

/// Longest time of a delivery.
const LONGEST: Duration = Duration::from_secs(60);

/// `[tracing]`: spans of requests to a collector.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Tracing {
    /// URL of a collector that takes OTLP over HTTP, without `/v1/traces`; unset: nothing is recorded.
    pub endpoint: Option<String>,
    /// Share of the requests without a trace that are recorded, from 0 to 1.
    pub sample: f64,
    /// File of headers that the collector wants; unset: none.
    pub headers: Option<SecretFile>,
    /// Certificates of the authorities that the collector may have its own from; unset: those of the machine.
    pub authorities: Option<PathBuf>,
    /// Longest time of a delivery.
    #[serde(serialize_with = "crate::duration::serialize")]
    pub timeout: Duration,
}

impl Default for Tracing {
    fn default() -> Self {
        let timeout = Duration::from_secs(10);
        Self { endpoint: None, sample: 0.01, headers: None, authorities: None, timeout }
    }
}

impl Tracing {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let default = Self::default();
        Self {
            endpoint: section.get("endpoint", |value| endpoint(value).map(Some), default.endpoint),
            sample: section.get("sample", fraction(0.0..=1.0), default.sample),
            headers: section.get("headers", |value| secret(value).map(Some), default.headers),
            authorities: section.get("authorities", |value| absolute_path(value).map(Some), default.authorities),
            timeout: section.get("timeout", timeout, default.timeout),
        }
    }

    /// The key that only an endpoint needs, if there is none, and why it is refused.
    pub(super) fn without_endpoint(&self) -> Option<(&'static str, String)> {
        if self.endpoint.is_some() {
            return None;
        }
        let key = if self.headers.is_some() { "headers" } else { self.authorities.as_ref().map(|_| "authorities")? };
        Some((key, "it is for a collector: set `endpoint` to its URL".to_owned()))
    }
}

fn endpoint(value: &DeValue<'_>) -> Result<String, Mismatch> {
    let wrong = || Mismatch::expected("a URL such as \"http://127.0.0.1:4318\", to which /v1/traces is added");
    let url = value.as_str().and_then(server_url).ok_or_else(wrong)?;
    let url = url.trim_end_matches('/');
    if url.contains('?') || url.ends_with("/v1/traces") { Err(wrong()) } else { Ok(url.to_owned()) }
}

fn timeout(value: &DeValue<'_>) -> Result<Duration, Mismatch> {
    let time = duration(value)?;
    if time <= LONGEST { Ok(time) } else { Err(Mismatch::expected("a duration of at most \"60s\"")) }
}
