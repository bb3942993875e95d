//! Tracer of requests, by the node's configuration.

use omni_auth::secret::{self, SecretError};
use omni_config::node::NodeConfig;
use omni_sink::{InvalidSink, SinkClient};
use omni_supervisor::clock::unix_ms;
use omni_traces::{ExportHeaders, ExportSettings, InvalidHeaders, Resource, Tracer};
use omni_usage::UsageRecord;
use std::io;
use std::sync::Arc;

/// Path of a collector that takes spans.
const PATH: &str = "/v1/traces";

/// The collector of the configuration; `None`: there is none.
///
/// # Errors
/// The certificates that it is checked with, or the headers that it wants, cannot be read.
pub fn collector(config: &NodeConfig) -> Result<Option<ExportSettings>, CollectorError> {
    let tracing = &config.tracing;
    let Some(endpoint) = &tracing.endpoint else { return Ok(None) };
    let client = SinkClient::new(format!("{endpoint}{PATH}"), tracing.authorities.as_deref(), tracing.timeout)?;
    let headers = match &tracing.headers {
        None => None,
        Some(file) => Some(ExportHeaders::open(secret::read("headers of the collector of traces", file)?.0)?),
    };
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let instance = UsageRecord::new_id(unix_ms()).to_string();
    let resource = Resource { version: env!("CARGO_PKG_VERSION"), host, instance };
    Ok(Some(ExportSettings { client, headers, resource }))
}

/// A collector that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CollectorError {
    /// Certificates that cannot be used.
    #[error("`tracing.endpoint` cannot be used")]
    Certificates(#[from] InvalidSink),
    /// File that cannot be read.
    #[error(transparent)]
    File(#[from] SecretError),
    /// Headers that are none.
    #[error("`tracing.headers` cannot be used")]
    Headers(#[from] InvalidHeaders),
}

/// Begins to trace, if there is a collector.
pub(crate) fn start(config: &NodeConfig, collector: Option<ExportSettings>) -> io::Result<Arc<Tracer>> {
    let tracer = match collector {
        None => Tracer::default(),
        Some(settings) => Tracer::start(settings, config.tracing.sample)?,
    };
    Ok(Arc::new(tracer))
}
