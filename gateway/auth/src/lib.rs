//! Authentication and authorisation of callers.
//!
//! - HTTP clients show a bearer token ([`Tokens`]), which names the models that they may use and has a quota.
//! - Callers of a Unix socket are known by the credentials that the kernel reports ([`peer_credentials`]); their user and groups
//!   give them a [`Role`].
//! - [`secret`] reads the files with tokens and keys.

mod access;
mod metrics;
mod peer;
mod quota;
pub mod secret;
mod tokens;

pub use access::{Owners, Peer, Role};
pub use metrics::TokenMetrics;
pub use peer::peer_credentials;
pub use tokens::{Admission, QuotaPermit, TokenHolder, Tokens, TokensFileError, read_tokens, token_summary};
