//! Delivery of batches to servers over HTTP: records of usage, spans of traces.
//!
//! A batch is a POST, acknowledged by any status of 200 to 299. Redirects are not followed, and no proxy is used:
//! batches go where the operator said. Certificates are checked with those of the machine, or of a file. Calls block:
//! they belong on a thread.

#![forbid(unsafe_code)]

#[cfg(any(test, feature = "testing"))]
pub mod testing;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use ureq::Agent;
use ureq::http::header::{CONTENT_TYPE, RETRY_AFTER};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// Certificates of the machine, where Debian and Red Hat keep them.
const CERTIFICATES: [&str; 2] = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];
/// Bytes of an answer that are read.
const LONGEST_ANSWER: u64 = 64 * 1024;

/// Client of one server.
#[derive(Debug)]
pub struct SinkClient {
    url: String,
    agent: Agent,
}

/// A server that cannot be used as a sink.
#[derive(Debug, thiserror::Error)]
pub enum InvalidSink {
    /// The file with the certificates of authorities cannot be read.
    #[error("the certificates in {path} cannot be read")]
    Certificates {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The machine has no file with certificates of authorities.
    #[error(
        "this machine has no certificates of authorities: install ca-certificates, or name a file as `authorities`"
    )]
    NoCertificates,
}

/// A batch that was not acknowledged.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    /// The server was not reached, or did not answer in time.
    #[error("{url} was not reached")]
    Unreachable {
        /// Address of the server.
        url: String,
        /// The reason.
        source: Box<ureq::Error>,
    },
    /// The server answered with another status.
    #[error("{url} answered {status}")]
    Status {
        /// Address of the server.
        url: String,
        /// The status.
        status: u16,
        /// Time after which the server wants to be asked again.
        retry_after: Option<Duration>,
    },
}

impl SinkClient {
    /// Client of the server at a URL, each of whose deliveries takes at most `timeout`. `authorities`: certificates of
    /// authorities that the server may have its own from; `None`: those of the machine.
    ///
    /// # Errors
    /// A URL of `https://` needs certificates, and there are none.
    pub fn new(url: String, authorities: Option<&Path>, timeout: Duration) -> Result<Self, InvalidSink> {
        let mut config = Agent::config_builder()
            .timeout_global(Some(timeout))
            .max_redirects(0)
            .proxy(None)
            .http_status_as_error(false);
        if url.starts_with("https://") {
            let usual = || CERTIFICATES.iter().map(Path::new).find(|path| path.exists());
            let roots = certificates(authorities.or_else(usual).ok_or(InvalidSink::NoCertificates)?)?;
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let tls = TlsConfig::builder().root_certs(roots).unversioned_rustls_crypto_provider(provider);
            config = config.tls_config(tls.build());
        }
        Ok(Self { url, agent: config.build().new_agent() })
    }

    /// Sends a batch, and returns the beginning of the server's answer. The batch is acknowledged when this returns.
    ///
    /// # Errors
    /// The batch was not acknowledged.
    pub fn post(&self, media_type: &str, headers: &[(&str, &str)], batch: &[u8]) -> Result<Vec<u8>, PostError> {
        let unreachable = |error| PostError::Unreachable { url: self.url.clone(), source: Box::new(error) };
        let mut request = self.agent.post(&self.url).header(CONTENT_TYPE, media_type);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send(batch).map_err(unreachable)?;
        let status = response.status();
        if !status.is_success() {
            // With `max_redirects(0)` a redirect is an answer like another.
            let seconds = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
            let retry_after = seconds.map(Duration::from_secs);
            return Err(PostError::Status { url: self.url.clone(), status: status.as_u16(), retry_after });
        }
        let answer = response.into_body().into_with_config().limit(LONGEST_ANSWER).read_to_vec();
        Ok(answer.unwrap_or_default()) // the status has acknowledged the batch
    }
}

fn certificates(path: &Path) -> Result<RootCerts, InvalidSink> {
    let invalid = |source| InvalidSink::Certificates { path: path.to_owned(), source };
    let pem = fs::read(path).map_err(|error| invalid(error.into()))?;
    let mut found: Vec<Certificate<'static>> = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| invalid(error.into()))? {
            found.push(certificate);
        }
    }
    if found.is_empty() { Err(invalid("there are none in it".into())) } else { Ok(RootCerts::new_with_certs(&found)) }
}

#[cfg(test)]
mod tests;
