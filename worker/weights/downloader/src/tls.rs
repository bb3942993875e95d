//! TLS with the certificates of the machine, or of a file.

use crate::failure::Failure;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Files in which distributions have the certificates of authorities.
const CERTIFICATES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Connections with TLS. On a machine without certificates they fail, and others work.
pub(crate) fn connector(authorities: Option<&str>) -> Result<TlsConnector, Failure> {
    let wrong = |what: String| Failure::Source(format!("certificates of authorities: {what}"));
    let path = authorities.or_else(|| CERTIFICATES.into_iter().find(|path| Path::new(path).exists()));
    let mut roots = RootCertStore::empty();
    if let Some(path) = path {
        let text = fs::read(path).map_err(|error| wrong(format!("{path}: {error}")))?;
        // A certificate that this version does not understand is left out: a machine has many.
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&text).flatten());
    }
    let config =
        ClientConfig::builder_with_provider(Arc::new(default_provider())).with_safe_default_protocol_versions();
    let config = config.map_err(|error| wrong(error.to_string()))?;
    let config = config.with_root_certificates(roots).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
