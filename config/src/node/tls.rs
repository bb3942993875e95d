//! `[tls]` of the node's configuration: certificate and key of the data listener.
//!
//! Read by [`super::NodeConfig::parse`]; the scheduler opens the files. Invariant: both are set, or neither.

use serde::Serialize;

use super::secret::{SecretFile, secret};
use crate::reader::Section;

/// `[tls]`: the data listener's certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Tls {
    /// The certificate and its intermediates; unset: the data listener serves plain HTTP.
    pub certificate: Option<SecretFile>,
    /// The certificate's private key.
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
