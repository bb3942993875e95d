//! The data listener's certificate: read at start, and shown to clients where `[tls]` names one.
//!
//! [`crate::serve`] gives it to [`crate::http::listener`]. What always holds: the key is the certificate's own, or the
//! scheduler does not start; whether clients trust the certificate is theirs to say.

use omni_auth::secret::{self, SecretError};
use omni_config::node::SecretFile;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::client::verify_server_cert_signed_by_trust_anchor as verify;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{self, CertificateError, RootCertStore, ServerConfig};
use x509_parser::parse_x509_certificate;

/// What clients may choose from, the best first.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Certificate and key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsFileError {
    /// A file cannot be read.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// It has none of what it should have.
    #[error("there is no {what} in {}: it should have {expected}", path.display())]
    Missing {
        /// What.
        what: &'static str,
        /// In PEM.
        expected: &'static str,
        /// Where.
        path: PathBuf,
    },
    /// It is no PEM.
    #[error("the {what} in {} is wrong", path.display())]
    Pem {
        /// What should be there.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        source: pem::Error,
    },
    /// What is in it is damaged, or of a kind that is not known.
    #[error("the {what} in {} is wrong", path.display())]
    Content {
        /// What should be there.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// Each is well by itself.
    #[error("the private key in {} is not that of the certificate in {}", key.display(), certificate.display())]
    Strangers {
        /// Where the key is.
        key: PathBuf,
        /// Where the certificate is: the first one in the file.
        certificate: PathBuf,
    },
}

/// What the data listener shows to clients.
#[derive(Debug)]
pub struct Tls {
    config: Arc<ServerConfig>,
    /// Of the certificate.
    sha256: String,
    /// See [`Tls::ends`].
    ends: Option<i64>,
}

/// Reads certificate and key.
///
/// # Errors
/// A file cannot be read, has not what it should have, or the key is not the certificate's.
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
    if let Some(word) = untimely(&parsed, &provider) {
        tracing::warn!(
            "the certificate in {} {word}: clients will refuse it, until there is another one and the node reloads",
            certificate.display()
        );
    }
    let (sha256, ends) = (secret::short_digest(&Sha256::digest(&leaf)), first_end(&chain));
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = builder.and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private));
    let mut config = config.map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            TlsFileError::Strangers { key: key.clone(), certificate: certificate.clone() }
        }
        source => TlsFileError::Content { what: "private key", path: key.clone(), source },
    })?;
    config.alpn_protocols = ALPN.map(<[u8]>::to_vec).into();
    Ok(Tls { config: Arc::new(config), sha256, ends })
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

/// When the first of them ends. One that rustls shows and this cannot read is left out: it is the clients' to judge.
fn first_end(chain: &[CertificateDer<'_>]) -> Option<i64> {
    let end = |certificate: &CertificateDer<'_>| {
        let (_, parsed) = parse_x509_certificate(certificate).ok()?;
        Some(parsed.validity().not_after.timestamp())
    };
    chain.iter().filter_map(end).min()
}

/// What is wrong with its time, if that is. Nothing vouches for it here, but its time is looked at first.
fn untimely(certificate: &ParsedCertificate<'_>, provider: &CryptoProvider) -> Option<&'static str> {
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
    /// Speaks TLS on connections.
    #[must_use]
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.config))
    }

    /// When the first certificate of the chain ends, in seconds since the Unix epoch: from then on clients refuse it.
    #[must_use]
    pub fn ends(&self) -> Option<i64> {
        self.ends
    }

    /// What may be told of it, for who compares two of them.
    #[must_use]
    pub fn told(&self) -> Value {
        json!(self.sha256)
    }
}
