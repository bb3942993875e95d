//! Bearer tokens of HTTP clients: read at start from the file that `[server] tokens` names, checked for each request.
//!
//! A request is authenticated first ([`Tokens::authenticate`]), then admitted to a model ([`TokenHolder::admit`]). Invariants: the
//! text of a token is nowhere but in the request that shows it; the time of a look-up does not depend on how much of a digest matches.

use crate::metrics::TokenMetrics;
use crate::quota::{Quota, QuotaExceeded, QuotaLimits};
use crate::secret::{self, SecretError};
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use omni_config::name::ModelName;
use omni_config::node::SecretFile;
use omni_config::tokens::{Token, TokenRole, TokensError, parse};
use omni_request_error::Failure;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::PathBuf;
use std::string::FromUtf8Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest token, in bytes.
const LONGEST: usize = 512;
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// `retry-after` for a holder with as many requests in flight as allowed.
const RETRY_IN_FLIGHT: Duration = Duration::from_secs(1);

/// A tokens file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokensFileError {
    /// Unreadable file.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// Content that is not UTF-8.
    #[error("the tokens in {} are wrong", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: FromUtf8Error,
    },
    /// Content with errors.
    #[error("the tokens in {} are wrong", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: TokensError,
    },
}

/// Reads the tokens of a file, by the names of their holders.
///
/// # Errors
/// The file cannot be read, or has errors.
pub fn read_tokens(file: &SecretFile) -> Result<BTreeMap<String, Token>, TokensFileError> {
    let (path, bytes) = secret::read("tokens", file)?;
    let text = String::from_utf8(bytes).map_err(|source| TokensFileError::Text { path: path.clone(), source })?;
    parse(&text).map_err(|source| TokensFileError::Parse { path, source })
}

/// Tokens without their secrets, to compare the tokens of two configurations.
#[must_use]
pub fn token_summary(tokens: &BTreeMap<String, Token>) -> Value {
    let summary = |token: &Token| {
        json!({
            "sha256": secret::short_digest(&token.sha256),
            "role": token.role.as_str(),
            "models": token.models,
            "in-flight": token.in_flight,
            "requests-per-second": token.requests_per_second,
        })
    };
    tokens.iter().map(|(name, token)| (name.clone(), summary(token))).collect::<serde_json::Map<_, _>>().into()
}

/// All valid tokens.
#[derive(Debug)]
pub struct Tokens {
    holders: Vec<Arc<TokenHolder>>,
    metrics: TokenMetrics,
}

/// A token, its limits, and how much of them is used.
#[derive(Debug)]
pub struct TokenHolder {
    name: String,
    token: Token,
    limits: QuotaLimits,
    quota: Mutex<Quota>,
    started: Instant,
    metrics: TokenMetrics,
}

/// Kind of admission of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// A new request, subject to the quota.
    New,
    /// A request that the previous process admitted and then forwarded; only that process can mark one so.
    Forwarded,
}

/// Place of an admitted request in its token's quota, until it is dropped.
#[derive(Debug)]
pub struct QuotaPermit(Arc<TokenHolder>);

impl Tokens {
    /// Tokens with an unused quota.
    #[must_use]
    pub fn new(tokens: BTreeMap<String, Token>, started: Instant, metrics: &TokenMetrics) -> Self {
        let holder = |(name, token): (String, Token)| {
            let limits = QuotaLimits::new(token.in_flight, token.requests_per_second);
            let (quota, metrics) = (Mutex::default(), metrics.clone());
            Arc::new(TokenHolder { name, token, limits, quota, started, metrics })
        };
        Self { holders: tokens.into_iter().map(holder).collect(), metrics: metrics.clone() }
    }

    /// The holder of this name, for requests that it has left with the node.
    #[must_use]
    pub fn holder(&self, name: &str) -> Option<&Arc<TokenHolder>> {
        self.holders.iter().find(|holder| holder.name == name)
    }

    /// The holder of the token that a request shows.
    ///
    /// # Errors
    /// [`Failure::Unauthorized`]: no token, or an unknown one.
    pub fn authenticate(&self, headers: &HeaderMap) -> Result<&Arc<TokenHolder>, Failure> {
        let shown = shown_token(headers).map(|token| <[u8; 32]>::from(Sha256::digest(token)));
        let found = shown.and_then(|digest| {
            // All are compared, wherever the match is.
            self.holders.iter().fold(None, |found, holder| if is_equal(&digest, holder) { Some(holder) } else { found })
        });
        found.ok_or_else(|| {
            self.metrics.unauthorized();
            Failure::Unauthorized
        })
    }
}

impl TokenHolder {
    /// Name of the holder.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Role of the holder.
    #[must_use]
    pub fn role(&self) -> TokenRole {
        self.token.role
    }

    /// Returns true if the token is good for this model.
    #[must_use]
    pub fn may_use(&self, model: &ModelName) -> bool {
        self.token.models.as_ref().is_none_or(|models| models.contains(model))
    }

    /// Admits a request to a model within the quota. The model need not exist.
    ///
    /// # Errors
    /// [`Failure::ModelNotAllowed`], [`Failure::TooManyRequests`]
    pub fn admit(self: &Arc<Self>, model: &ModelName, admission: Admission) -> Result<QuotaPermit, Failure> {
        if !self.may_use(model) {
            self.metrics.count(&self.name, "model");
            return Err(Failure::ModelNotAllowed);
        }
        let now = self.started.elapsed();
        let mut quota = self.quota.lock().unwrap_or_else(PoisonError::into_inner);
        let admitted = match admission {
            Admission::New => quota.admit(&self.limits, now),
            Admission::Forwarded => {
                quota.admit_forwarded();
                Ok(())
            }
        };
        drop(quota);
        let (outcome, result) = match admitted {
            Ok(()) => ("admitted", Ok(QuotaPermit(Arc::clone(self)))),
            Err(QuotaExceeded::InFlight) => {
                ("in-flight", Err(Failure::TooManyRequests { retry_after: RETRY_IN_FLIGHT }))
            }
            Err(QuotaExceeded::Rate { retry_after }) => ("rate", Err(Failure::TooManyRequests { retry_after })),
        };
        self.metrics.count(&self.name, outcome);
        result
    }
}

impl Drop for QuotaPermit {
    fn drop(&mut self) {
        self.0.quota.lock().unwrap_or_else(PoisonError::into_inner).release();
    }
}

/// The token of a request: the bearer token of exactly one `authorization` header, or without one the value of exactly one
/// `x-api-key`, which clients of the Anthropic API send.
fn shown_token(headers: &HeaderMap) -> Option<&[u8]> {
    let single = |name: &HeaderName| {
        let mut values = headers.get_all(name).iter();
        let first = values.next();
        (first.map(HeaderValue::as_bytes), values.next().is_some())
    };
    let (value, several) = single(&AUTHORIZATION);
    let token = match value {
        Some(value) => {
            let (scheme, token) = value.split_at_checked("bearer ".len())?;
            if several || !scheme.eq_ignore_ascii_case(b"bearer ") {
                return None;
            }
            token
        }
        None => {
            let (value, several) = single(&API_KEY);
            value.filter(|_| !several)?
        }
    };
    let token = token.trim_ascii();
    (1..=LONGEST).contains(&token.len()).then_some(token)
}

/// Comparison in constant time.
fn is_equal(digest: &[u8; 32], holder: &TokenHolder) -> bool {
    let differing = digest.iter().zip(&holder.token.sha256).fold(0, |all, (a, b)| black_box(all | (a ^ b)));
    black_box(differing) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    fn headers(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (AUTHORIZATION, HeaderValue::from_str(value).unwrap())).collect()
    }

    fn token(text: &str) -> Token {
        let sha256 = Sha256::digest(text).into();
        Token { sha256, role: TokenRole::Client, models: None, in_flight: Some(1), requests_per_second: None }
    }

    #[test]
    fn tokens_are_matched_to_their_holders() {
        let mut registry = Registry::with_prefix("omni");
        let metrics = TokenMetrics::register(&mut registry);
        let all = [("ci", "one"), ("web", "two")].map(|(name, text)| (name.to_owned(), token(text)));
        let tokens = Tokens::new(all.into(), Instant::now(), &metrics);
        let name = |values: &[&str]| tokens.authenticate(&headers(values)).map(|holder| holder.name.as_str());
        for (values, whose) in [
            (&["Bearer one"][..], Ok("ci")),
            (&["bearer  two "], Ok("web")),
            (&["BEARER two"], Ok("web")),
            (&["Bearer three"], Err(Failure::Unauthorized)),
            (&["Bearer "], Err(Failure::Unauthorized)),
            (&["one"], Err(Failure::Unauthorized)),
            (&["Basic one"], Err(Failure::Unauthorized)),
            (&["Bearer one", "Bearer one"], Err(Failure::Unauthorized)),
            (&[&format!("Bearer {}", "x".repeat(600))], Err(Failure::Unauthorized)),
            (&[], Err(Failure::Unauthorized)),
        ] {
            assert_eq!(name(values), whose, "{values:?}");
        }
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        assert!(text.contains(r#"omni_token_requests_total{token="",outcome="unknown"} 7"#));
    }

    #[test]
    fn a_permit_returns_its_place_when_dropped() {
        let metrics = TokenMetrics::default();
        let tokens = Tokens::new([("ci".to_owned(), token("one"))].into(), Instant::now(), &metrics);
        let holder = tokens.authenticate(&headers(&["Bearer one"])).unwrap();
        let model = ModelName::try_from("m".to_owned()).unwrap();
        let first = holder.admit(&model, Admission::New).unwrap();
        assert!(matches!(holder.admit(&model, Admission::New), Err(Failure::TooManyRequests { .. })));
        let second = holder.admit(&model, Admission::Forwarded).unwrap();
        drop(first);
        assert!(holder.admit(&model, Admission::New).is_err(), "the forwarded request has the only place");
        drop(second);
        holder.admit(&model, Admission::New).unwrap();
    }

    #[test]
    fn the_summary_has_no_secret() {
        let summary = token_summary(&[("ci".to_owned(), token("one"))].into()).to_string();
        assert!(summary.contains("\"7692c3ad…\"") && !summary.contains("one"), "{summary}");
    }
}
