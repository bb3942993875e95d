//! Certificate and key of a listener, read at start.
//!
//! Invariant: the key is the certificate's own, or they are refused. Whether the certificate is trusted is for clients to decide.

use omni_auth::secret::{self, SecretError};
use omni_config::node::SecretFile;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::Arc;
pub use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::client::verify_server_cert_signed_by_trust_anchor as verify;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{self, CertificateError, RootCertStore, ServerConfig};
use x509_parser::parse_x509_certificate;

/// Protocols that clients may choose, the best first.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Certificate or key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsFileError {
    /// Unreadable file.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// File without what it should have.
    #[error("there is no {what} in {}: it should have {expected}", path.display())]
    Missing {
        /// Kind of item.
        what: &'static str,
        /// Form that it should have.
        expected: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// File that is not PEM.
    #[error("the {what} in {} is wrong", path.display())]
    Pem {
        /// Kind of item.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Cause.
        source: pem::Error,
    },
    /// Item that is damaged, or of an unknown kind.
    #[error("the {what} in {} is wrong", path.display())]
    Content {
        /// Kind of item.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Cause.
        source: rustls::Error,
    },
    /// Key of another certificate.
    #[error("the private key in {} is not that of the certificate in {}", key.display(), certificate.display())]
    KeyMismatch {
        /// File of the key.
        key: PathBuf,
        /// File of the certificate, which is the first one in it.
        certificate: PathBuf,
    },
}

/// Certificate and key for a listener.
#[derive(Debug)]
pub struct Tls {
    config: Arc<ServerConfig>,
    /// Beginning of the certificate's digest.
    sha256: String,
    /// See [`Tls::expires_at`].
    expires_at: Option<i64>,
}

/// Reads certificate and key.
///
/// # Errors
/// A file cannot be read or has errors, or the key is not the certificate's.
pub fn read(certificate: &SecretFile, key: &SecretFile) -> Result<Tls, TlsFileError> {
    let (certificate, text) = secret::read("certificate", certificate)?;
    let (leaf, chain) = chain(&certificate, &text)?;
    let (key, text) = secret::read("private key", key)?;
    let private = PrivateKeyDer::from_pem_slice(&text).map_err(|error| match error {
        pem::Error::NoItemsFound => TlsFileError::Missing {
            what: "private key",
            expected: "one that is not encrypted, in PEM: -----BEGIN PRIVATE KEY-----",
            path: key.clone(),
        },
        source => TlsFileError::Pem { what: "private key", path: key.clone(), source },
    })?;
    let provider = Arc::new(ring::default_provider());
    let damaged = |source| TlsFileError::Content { what: "certificate", path: certificate.clone(), source };
    let parsed = ParsedCertificate::try_from(&leaf).map_err(damaged)?;
    if let Some(problem) = validity_problem(&parsed, &provider) {
        tracing::warn!(
            "the certificate in {} {problem}: clients will refuse it, until there is another one and the node reloads",
            certificate.display()
        );
    }
    let (sha256, expires_at) = (secret::short_digest(&Sha256::digest(&leaf)), first_expiry(&chain));
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = builder.and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private));
    let mut config = config.map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            TlsFileError::KeyMismatch { key: key.clone(), certificate: certificate.clone() }
        }
        source => TlsFileError::Content { what: "private key", path: key.clone(), source },
    })?;
    config.alpn_protocols = ALPN.map(<[u8]>::to_vec).into();
    Ok(Tls { config: Arc::new(config), sha256, expires_at })
}

/// The first certificate of a file, and all of them.
fn chain(path: &Path, text: &[u8]) -> Result<(CertificateDer<'static>, Vec<CertificateDer<'static>>), TlsFileError> {
    let chain = CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>();
    let missing = || TlsFileError::Missing {
        what: "certificate",
        expected: "one in PEM: -----BEGIN CERTIFICATE-----",
        path: path.to_owned(),
    };
    match chain {
        Ok(chain) => chain.first().cloned().map(|leaf| (leaf, chain)).ok_or_else(missing),
        Err(pem::Error::NoItemsFound) => Err(missing()),
        Err(source) => Err(TlsFileError::Pem { what: "certificate", path: path.to_owned(), source }),
    }
}

/// Expiry of the first of them to expire. Certificates that rustls accepts and this parser cannot read are left out.
fn first_expiry(chain: &[CertificateDer<'_>]) -> Option<i64> {
    let end = |certificate: &CertificateDer<'_>| {
        let (_, parsed) = parse_x509_certificate(certificate).ok()?;
        Some(parsed.validity().not_after.timestamp())
    };
    chain.iter().filter_map(end).min()
}

/// Problem with the certificate's period of validity. It is verified against no roots: rustls checks the period before the issuer.
fn validity_problem(certificate: &ParsedCertificate<'_>, provider: &CryptoProvider) -> Option<&'static str> {
    let known = provider.signature_verification_algorithms.all;
    let verified = verify(certificate, &RootCertStore::empty(), &[], UnixTime::now(), known);
    match verified {
        Err(rustls::Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. })) => {
            Some("has expired")
        }
        Err(rustls::Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        )) => Some("is not valid yet"),
        Ok(()) | Err(_) => None,
    }
}

impl Tls {
    /// TLS for accepted connections.
    #[must_use]
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.config))
    }

    /// Expiry of the first certificate of the chain to expire, in seconds since the Unix epoch: from then on clients refuse it.
    #[must_use]
    pub fn expires_at(&self) -> Option<i64> {
        self.expires_at
    }

    /// Public summary, to compare the certificates of two configurations.
    #[must_use]
    pub fn summary(&self) -> Value {
        json!(self.sha256)
    }
}
