//! The data listener's tokens: read at start, and asked for each request where `[server] tokens` names a file.
//!
//! [`crate::http::data`] asks [`Tokens::holder`], then [`Holder::admit`]. What always holds: a token's text is nowhere but in
//! the request that shows it; how long a look-up takes does not tell how much of a digest was right.

use crate::metrics::TokenMetrics;
use crate::policy::quota::{Limits, Over, Quota};
use crate::secret::{self, SecretError};
use hyper::header::{AUTHORIZATION, HeaderMap};
use omni_config::name::ModelName;
use omni_config::node::NodeConfig;
use omni_config::tokens::{Token, TokensError, parse};
use omni_request_error::Failure;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::PathBuf;
use std::string::FromUtf8Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The longest token.
const LONGEST: usize = 512;
/// For who has as many requests under way as allowed.
const AGAIN: Duration = Duration::from_secs(1);

/// The tokens cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokensFileError {
    /// The file cannot be read.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// It is no text.
    #[error("the tokens in {} are wrong", path.display())]
    Text {
        /// Which.
        path: PathBuf,
        /// Why.
        source: FromUtf8Error,
    },
    /// The file is wrong.
    #[error("the tokens in {} are wrong", path.display())]
    Parse {
        /// Which.
        path: PathBuf,
        /// Why.
        source: TokensError,
    },
}

/// The tokens of the configuration's file, by name; `None` when none is configured.
///
/// # Errors
/// [`TokensFileError`]
pub fn read(config: &NodeConfig) -> Result<Option<BTreeMap<String, Token>>, TokensFileError> {
    let Some(file) = &config.server.tokens else { return Ok(None) };
    let (path, bytes) = secret::read("tokens", file)?;
    let text = String::from_utf8(bytes).map_err(|source| TokensFileError::Text { path: path.clone(), source })?;
    parse(&text).map(Some).map_err(|source| TokensFileError::Parse { path, source })
}

/// What may be told of tokens, for who compares two files of them.
#[must_use]
pub fn told(tokens: &BTreeMap<String, Token>) -> Value {
    let told = |token: &Token| {
        json!({
            "sha256": secret::told(&token.sha256),
            "models": token.models,
            "in-flight": token.in_flight,
            "requests-per-second": token.requests_per_second,
        })
    };
    tokens.iter().map(|(name, token)| (name.clone(), told(token))).collect::<serde_json::Map<_, _>>().into()
}

/// All tokens that are good.
#[derive(Debug)]
pub struct Tokens {
    holders: Vec<Arc<Holder>>,
    metrics: TokenMetrics,
}

/// Who holds one of them.
#[derive(Debug)]
pub struct Holder {
    name: String,
    token: Token,
    limits: Limits,
    quota: Mutex<Quota>,
    started: Instant,
    metrics: TokenMetrics,
}

/// Marks a request that the scheduler before this one has admitted: nobody but that can send one so.
#[derive(Debug, Clone, Copy)]
pub struct AdmittedBefore;

/// A request that its token's limits have room for, until this goes.
#[derive(Debug)]
pub struct Admitted(Arc<Holder>);

impl Tokens {
    /// With limits that nothing is used of yet.
    #[must_use]
    pub fn new(tokens: BTreeMap<String, Token>, started: Instant, metrics: &TokenMetrics) -> Self {
        let holder = |(name, token): (String, Token)| {
            let limits = Limits::new(token.in_flight, token.requests_per_second);
            let (quota, metrics) = (Mutex::default(), metrics.clone());
            Arc::new(Holder { name, token, limits, quota, started, metrics })
        };
        Self { holders: tokens.into_iter().map(holder).collect(), metrics: metrics.clone() }
    }

    /// Whose token a request shows.
    ///
    /// # Errors
    /// [`Failure::Unauthorized`]: nobody's.
    pub fn holder(&self, headers: &HeaderMap) -> Result<&Arc<Holder>, Failure> {
        let shown = bearer(headers).map(|token| <[u8; 32]>::from(Sha256::digest(token)));
        let found = shown.and_then(|digest| {
            // All of them, wherever it is.
            self.holders.iter().fold(None, |found, holder| if is_same(&digest, holder) { Some(holder) } else { found })
        });
        found.ok_or_else(|| {
            self.metrics.nobodys();
            Failure::Unauthorized
        })
    }
}

impl Holder {
    /// Takes a request to a model, if there is one of that name, within the limits; one that was admitted `before` is within
    /// them.
    ///
    /// # Errors
    /// [`Failure::ModelNotAllowed`], [`Failure::TooManyRequests`]
    pub fn admit(self: &Arc<Self>, model: &ModelName, before: Option<AdmittedBefore>) -> Result<Admitted, Failure> {
        if self.token.models.as_ref().is_some_and(|models| !models.contains(model)) {
            self.metrics.count(&self.name, "model");
            return Err(Failure::ModelNotAllowed);
        }
        let now = self.started.elapsed();
        let mut quota = self.quota.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = match before {
            None => quota.admit(&self.limits, now),
            Some(AdmittedBefore) => {
                quota.take_over();
                Ok(())
            }
        };
        drop(quota);
        let (outcome, answer) = match taken {
            Ok(()) => ("admitted", Ok(Admitted(Arc::clone(self)))),
            Err(Over::InFlight) => ("in-flight", Err(Failure::TooManyRequests { retry_after: AGAIN })),
            Err(Over::Rate { retry_after }) => ("rate", Err(Failure::TooManyRequests { retry_after })),
        };
        self.metrics.count(&self.name, outcome);
        answer
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.quota.lock().unwrap_or_else(PoisonError::into_inner).done();
    }
}

/// The token of the only `authorization` header.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (value, None) = (values.next()?.as_bytes(), values.next()) else { return None };
    let (scheme, token) = value.split_at_checked("bearer ".len())?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && (1..=LONGEST).contains(&token.len())).then_some(token)
}

fn is_same(digest: &[u8; 32], holder: &Holder) -> bool {
    let differing = digest.iter().zip(&holder.token.sha256).fold(0, |all, (a, b)| black_box(all | (a ^ b)));
    black_box(differing) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use hyper::header::HeaderValue;

    fn headers(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (AUTHORIZATION, HeaderValue::from_str(value).unwrap())).collect()
    }

    fn token(text: &str) -> Token {
        let sha256 = Sha256::digest(text).into();
        Token { sha256, models: None, in_flight: Some(1), requests_per_second: None }
    }

    #[test]
    fn whose_token_it_is() {
        let metrics = Metrics::default();
        let all = [("ci", "one"), ("web", "two")].map(|(name, text)| (name.to_owned(), token(text)));
        let tokens = Tokens::new(all.into(), Instant::now(), &metrics.of_tokens());
        let name = |values: &[&str]| tokens.holder(&headers(values)).map(|holder| holder.name.as_str());
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
        assert!(metrics.render().contains(r#"omni_token_requests_total{token="",outcome="unknown"} 7"#));
    }

    #[test]
    fn a_place_is_given_back_with_the_answer() {
        let metrics = Metrics::default();
        let tokens = Tokens::new([("ci".to_owned(), token("one"))].into(), Instant::now(), &metrics.of_tokens());
        let holder = tokens.holder(&headers(&["Bearer one"])).unwrap();
        let model = ModelName::try_from("m".to_owned()).unwrap();
        let first = holder.admit(&model, None).unwrap();
        assert!(matches!(holder.admit(&model, None), Err(Failure::TooManyRequests { .. })));
        let second = holder.admit(&model, Some(AdmittedBefore)).unwrap();
        drop(first);
        assert!(holder.admit(&model, None).is_err(), "the second one has its place");
        drop(second);
        holder.admit(&model, None).unwrap();
    }

    #[test]
    fn nothing_is_told_that_would_open_the_door() {
        let told = told(&[("ci".to_owned(), token("one"))].into()).to_string();
        assert!(told.contains("\"7692c3ad…\"") && !told.contains("one"), "{told}");
    }
}
