//! Reasons for which weights cannot be fetched, each with whether trying again can help.

use crate::pace::TooSlow;
use crate::rules::Refusal;
use crate::url::{Origin, Url};
use std::io;

/// Weights cannot be fetched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("the order cannot be read: {0}")]
    Order(String),
    #[error("{0}: it is not asked")]
    Refused(#[from] Refusal),
    #[error("{url} answers {status}: {by}")]
    Forbidden { url: String, status: u16, by: Refuser },
    #[error("there is no {url}: correct `source` or `files` in [weights] of omni.toml")]
    Missing { url: String },
    #[error("{url} answers {status}")]
    Status { url: String, status: u16 },
    #[error("{url} answers what makes no sense: {what}")]
    Odd { url: String, what: String },
    #[error("{url} does not answer: {what}")]
    Network { url: String, what: String },
    #[error(transparent)]
    TooSlow(#[from] TooSlow),
    #[error("`{path}` has changed at the source while it was fetched: it is fetched anew")]
    Changed { path: String },
    #[error(
        "`{path}` has another content than it should: its SHA-256 is {found}, and {expected} was given; correct the digest in \
         [weights] of omni.toml, or the file at the source"
    )]
    WrongDigest { path: String, expected: String, found: String },
    #[error(
        "the disk is full: {needed} bytes are to be fetched, and it has {free}; make room below the node's cache directory"
    )]
    DiskFull { needed: u64, free: u64 },
    #[error(
        "the weights have {bytes} bytes, and the node's cache of weights {most}: raise `cache` in [weights] of the node's \
         configuration, or list fewer files in `files` in [weights]"
    )]
    TooLarge { bytes: u64, most: u64 },
    #[error("{0}")]
    Source(String),
    #[error("the node cannot write the weights: {0}")]
    Disk(#[source] io::Error),
}

/// Server that does not let the node have something, and the credential that it was given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refuser {
    #[error(
        "the server refuses the credential `{0}` of the node's configuration: it is wrong or has expired, or it may not read \
         this"
    )]
    Own(String),
    #[error(
        "the server wants a credential or does not give this to anyone, and the node's configuration names no `credential` \
         for this source"
    )]
    OwnWithoutCredential,
    #[error(
        "{0}, which the source's own server redirects to, does not give it; credentials are for the own server only"
    )]
    Other(Origin),
}

impl Failure {
    /// A server that does not answer, or not to the end.
    pub(crate) fn network(url: &Url, what: impl Into<String>) -> Self {
        Self::Network { url: url.to_string(), what: what.into() }
    }

    /// An answer that makes no sense.
    pub(crate) fn odd(url: &Url, what: impl Into<String>) -> Self {
        Self::Odd { url: url.to_string(), what: what.into() }
    }

    /// An answer without what was asked for, by its status; one that forbids it is known by its server, too.
    pub(crate) fn status(url: &Url, status: u16) -> Self {
        let url = url.to_string();
        match status {
            404 | 410 => Self::Missing { url },
            _ => Self::Status { url, status },
        }
    }

    /// Returns true if trying again leads to the same.
    pub(crate) fn is_permanent(&self) -> bool {
        match self {
            Self::Order(_)
            | Self::Refused(_)
            | Self::Forbidden { .. }
            | Self::Missing { .. }
            | Self::Odd { .. }
            | Self::WrongDigest { .. }
            | Self::TooLarge { .. }
            | Self::Source(_) => true,
            Self::Status { .. }
            | Self::Network { .. }
            | Self::TooSlow(_)
            | Self::Changed { .. }
            | Self::DiskFull { .. }
            | Self::Disk(_) => false,
        }
    }
}
