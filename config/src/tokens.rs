//! The file of tokens that authorise clients of a node: one table per token, named after its holder.
//!
//! Read by the scheduler where `[server] tokens` names such a file. Invariants: a token itself is never in the file,
//! only its SHA-256 digest; no two names have the same digest.

use std::collections::{BTreeMap, BTreeSet};

use toml::de::DeValue;

use crate::error::Problems;
use crate::kind::{Mismatch, choice, fraction, number, parsed};
use crate::name::ModelName;
use crate::reader::{Document, Section};

/// Most tokens of a node: each is a label of metrics.
const MOST: usize = 256;
/// Longest name.
const LONGEST: usize = 64;

/// Role of a token's holder. Each includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TokenRole {
    /// Requests to models.
    #[default]
    Client,
    /// Everything that the node's page can show and do: logs, failures in full, commands to models.
    Admin,
}

impl TokenRole {
    /// Name in the file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Admin => "admin",
        }
    }
}

/// A token, by its digest, and what its holder may do.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// SHA-256 of the token's text.
    pub sha256: [u8; 32],
    /// Role.
    pub role: TokenRole,
    /// Models that the token is valid for; `None`: all.
    pub models: Option<BTreeSet<ModelName>>,
    /// Requests at a time; `None`: no limit.
    pub in_flight: Option<u32>,
    /// Requests per second on average; `None`: no limit.
    pub requests_per_second: Option<f64>,
}

/// An invalid file of tokens, with all its problems.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TokensError(pub Problems);

/// Reads the text of a file of tokens, by name.
///
/// # Errors
///
/// The text is not TOML; a name, key or value is wrong; two tokens are the same; or there are too many.
pub fn parse(text: &str) -> Result<BTreeMap<String, Token>, TokensError> {
    let mut document = Document::parse(text).map_err(TokensError)?;
    let tokens = document.read(|root| root.sections(MOST, name, token));
    let mut seen = BTreeMap::new();
    let mut wrong = Vec::new();
    for (name, token) in &tokens {
        if token.role == TokenRole::Admin && token.models.is_some() {
            let reason = "a token of role admin is for all models: leave `models` out".to_owned();
            wrong.push((name.clone(), "models", reason));
        }
        if let Some(first) = seen.insert(token.sha256, name) {
            let reason = format!("it is the token of `{first}`: make another one, `omnictl token {name}`");
            wrong.push((name.clone(), "sha256", reason));
        }
    }
    if document.is_clean() {
        wrong.into_iter().for_each(|(name, key, reason)| document.refuse(&name, key, reason));
    }
    document.finish(tokens).map_err(TokensError)
}

fn name(text: &str) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if (1..=LONGEST).contains(&text.len()) && text.bytes().all(allowed) {
        Ok(text.to_owned())
    } else {
        Err(format!("a token's name has 1 to {LONGEST} letters, digits, `-` and `_`"))
    }
}

fn token(section: &mut Section<'_>) -> Token {
    let models = section.list("models", parsed("a model's name such as \"@cf/meta/llama\""));
    let in_flight = number(1..=1_000_000);
    let rate = fraction(0.001..=1_000_000.0);
    let roles = [TokenRole::Client, TokenRole::Admin].map(|role| (role.as_str(), role));
    Token {
        sha256: section.required("sha256", digest, [0; 32]),
        role: section.get("role", choice(&roles), TokenRole::Client),
        models: section.has("models").then(|| models.into_iter().collect()),
        in_flight: section.get("in-flight", |value| in_flight(value).map(Some), None),
        requests_per_second: section.get("requests-per-second", |value| rate(value).map(Some), None),
    }
}

fn digest(value: &DeValue<'_>) -> Result<[u8; 32], Mismatch> {
    let wrong =
        || Mismatch::expected("the token's SHA-256 digest, 64 hexadecimal digits: `omnictl token NAME` makes one");
    let text = value.as_str().filter(|text| text.len() == 64 && text.is_ascii()).ok_or_else(wrong)?;
    let mut digest = [0; 32];
    for (byte, at) in digest.iter_mut().zip((0..64).step_by(2)) {
        *byte = text.get(at..at + 2).and_then(|two| u8::from_str_radix(two, 16).ok()).ok_or_else(wrong)?;
    }
    Ok(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "sha256 = \"00ff000000000000000000000000000000000000000000000000000000000001\"\n";

    #[test]
    fn permissions_of_tokens() {
        let text = format!("[ci]\n{ONE}models = [\"cowsay\"]\nin-flight = 4\nrequests-per-second = 0.5\n[all]\n{ONE}");
        let tokens =
            parse(&text.replacen("01\"\n[", "02\"\n[", 1).replacen("01\"\nmodels", "02\"\nmodels", 1)).unwrap();
        let ci = &tokens["ci"];
        assert_eq!((ci.sha256[1], ci.sha256[31], ci.in_flight, ci.requests_per_second), (255, 2, Some(4), Some(0.5)));
        assert_eq!(ci.models.as_ref().map(BTreeSet::len), Some(1));
        assert_eq!((&tokens["all"].models, tokens["all"].in_flight), (&None, None));
        assert_eq!(tokens["all"].role, TokenRole::Client);
        assert_eq!(parse(&format!("[me]\n{ONE}role = \"admin\"\n")).unwrap()["me"].role, TokenRole::Admin);
        let none = parse(&format!("[ci]\n{ONE}models = []\n")).unwrap();
        assert_eq!(none["ci"].models, Some(BTreeSet::new()), "an empty list is no model, not all of them");
        assert_eq!(parse("").unwrap(), BTreeMap::new());
    }

    #[test]
    fn invalid_files_are_refused() {
        for (text, message) in [
            ("[ci]\n".to_owned(), "`ci.sha256`"),
            ("[ci]\nsha256 = \"secret\"\n".to_owned(), "64 hexadecimal digits"),
            (format!("[ci]\nsha256 = \"{}\"\n", "zz".repeat(32)), "64 hexadecimal digits"),
            (format!("[ci]\n{ONE}model = [\"cowsay\"]\n"), "did you mean `models`?"),
            (format!("[ci]\n{ONE}role = \"root\"\n"), "\"client\" or \"admin\""),
            (format!("[ci]\n{ONE}role = \"admin\"\nmodels = []\n"), "is for all models"),
            (format!("[ci]\n{ONE}in-flight = 0\n"), "a whole number from 1"),
            (format!("[ci]\n{ONE}requests-per-second = 0\n"), "a number from 0.001"),
            (format!("[\"a b\"]\n{ONE}"), "a token's name has"),
            (format!("[a]\n{ONE}[b]\n{ONE}"), "it is the token of `a`"),
            (ONE.to_owned(), "expected a table"),
            ((0..257).map(|n| format!("[t{n}]\nsha256 = \"{n:064x}\"\n")).collect(), "at most 256"),
        ] {
            let said = parse(&text).expect_err(&text).to_string();
            assert!(said.contains(message), "{said}");
        }
    }
}
