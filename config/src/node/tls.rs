//! `[tls]` of the node's configuration: what the data listener shows to clients that speak TLS.
//!
//! Read by [`super::NodeConfig::parse`]; the scheduler opens the files. What always holds: there are both or none.

use serde::Serialize;

use super::secret::{SecretFile, secret};
use crate::reader::Section;

/// `[tls]`: the data listener's certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Tls {
    /// The certificate and those between it and what clients trust; unset: the data listener speaks plain HTTP.
    pub certificate: Option<SecretFile>,
    /// Its private key.
    pub key: Option<SecretFile>,
}

impl Tls {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Self {
            certificate: section.get("certificate", |value| secret(value).map(Some), None),
            key: section.get("key", |value| secret(value).map(Some), None),
        }
    }

    /// Certificate and key.
    #[must_use]
    pub fn files(&self) -> Option<(&SecretFile, &SecretFile)> {
        self.certificate.as_ref().zip(self.key.as_ref())
    }

    /// The key that stands alone, and why that is wrong.
    pub(super) fn half(&self) -> Option<(&'static str, String)> {
        match (&self.certificate, &self.key) {
            (Some(_), None) => Some(("certificate", "a certificate needs its private key beside it: `key`".to_owned())),
            (None, Some(_)) => Some(("key", "a key needs its certificate beside it: `certificate`".to_owned())),
            (Some(_), Some(_)) | (None, None) => None,
        }
    }
}
