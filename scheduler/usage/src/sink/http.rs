//! A server as a sink: it gets batches by POST as `application/x-ndjson`, and acknowledges them by any status of 200 to
//! 299.

use omni_log::chain;
use omni_sink::{InvalidSink, SinkClient};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest time of a delivery.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Server that takes batches.
#[derive(Debug)]
pub struct HttpSink {
    client: SinkClient,
    /// File with the token, which is read for each delivery.
    token: Option<PathBuf>,
}

impl HttpSink {
    /// The server at a URL. `ca`: certificates of authorities that it may have its own from; those of the machine otherwise.
    ///
    /// # Errors
    /// A URL of `https://` needs certificates, and there are none.
    pub fn new(url: String, token: Option<PathBuf>, ca: Option<&Path>) -> Result<Self, InvalidSink> {
        Ok(Self { client: SinkClient::new(url, ca, TIMEOUT)?, token })
    }

    pub(super) fn post(&self, lines: &[u8]) -> Result<(), String> {
        let bearer = match &self.token {
            None => None,
            Some(path) => {
                let token = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
                Some(format!("Bearer {}", token.trim()))
            }
        };
        let headers: Vec<_> = bearer.iter().map(|bearer| ("authorization", bearer.as_str())).collect();
        let posted = self.client.post("application/x-ndjson", &headers, lines);
        posted.map(drop).map_err(|error| chain(&error))
    }
}
