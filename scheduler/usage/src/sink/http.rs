//! A server as a sink: it gets batches by POST as `application/x-ndjson`, and acknowledges them by any status of 200 to
//! 299. Redirects are not followed: records go where the operator said.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// Longest time of a delivery.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Certificates of the machine, where Debian and Red Hat keep them.
const CERTIFICATES: [&str; 2] = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];

/// Server that takes batches.
#[derive(Debug)]
pub struct HttpSink {
    url: String,
    /// File with the token, which is read for each delivery.
    token: Option<PathBuf>,
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
    #[error("this machine has no certificates of authorities: install ca-certificates, or name a file as `ca`")]
    NoCertificates,
}

impl HttpSink {
    /// The server at a URL. `ca`: certificates of authorities that it may have its own from; those of the machine otherwise.
    ///
    /// # Errors
    /// A URL of `https://` needs certificates, and there are none.
    pub fn new(url: String, token: Option<PathBuf>, ca: Option<&Path>) -> Result<Self, InvalidSink> {
        let mut config = Agent::config_builder().timeout_global(Some(TIMEOUT)).max_redirects(0).proxy(None);
        if url.starts_with("https://") {
            let usual = || CERTIFICATES.iter().map(Path::new).find(|path| path.exists());
            let roots = certificates(ca.or_else(usual).ok_or(InvalidSink::NoCertificates)?)?;
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let tls = TlsConfig::builder().root_certs(roots).unversioned_rustls_crypto_provider(provider);
            config = config.tls_config(tls.build());
        }
        Ok(Self { url, token, agent: config.build().new_agent() })
    }

    pub(super) fn post(&self, lines: &[u8]) -> Result<(), String> {
        let mut request = self.agent.post(&self.url).header("content-type", "application/x-ndjson");
        if let Some(path) = &self.token {
            let token = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
            request = request.header("authorization", format!("Bearer {}", token.trim()));
        }
        match request.send(lines) {
            // With `max_redirects(0)` a redirect is an answer like another.
            Ok(response) if response.status().is_success() => Ok(()),
            Ok(response) => Err(format!("{} answered {}", self.url, response.status())),
            Err(error) => Err(format!("{}: {error}", self.url)),
        }
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
