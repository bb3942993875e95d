//! Paths of requests: the prefix of the Workers AI API, and names of models in routes.

use crate::name::ModelName;

/// The route of a path: what follows `/client/v4/accounts/{account}/ai`, or the path itself without this prefix.
#[must_use]
pub fn below_account(path: &str) -> &str {
    let route = || {
        let rest = path.strip_prefix("/client/v4/accounts/")?;
        let at = rest.find('/').filter(|at| *at > 0)?;
        rest.get(at..)?.strip_prefix("/ai").filter(|route| route.starts_with('/'))
    };
    route().unwrap_or(path)
}

/// Decodes the rest of a path once, and checks that it is the name of a model.
#[must_use]
pub fn model_name(tail: &str) -> Option<ModelName> {
    let mut decoded = Vec::with_capacity(tail.len());
    let mut bytes = tail.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let (high, low) = (bytes.next()?, bytes.next()?);
            let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
            decoded.push(digit(high)? * 16 + digit(low)?);
        } else {
            decoded.push(byte);
        }
    }
    ModelName::try_from(String::from_utf8(decoded).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_decoded_once() {
        for (tail, expected) in [
            ("cowsay", Some("cowsay")),
            ("@cf/meta/llama", Some("@cf/meta/llama")),
            ("%40cf%2fmeta%2Fllama", Some("@cf/meta/llama")),
            ("..%2Fx", None),
            ("a%252Fb", None),
            ("a%2", None),
            ("a%zz", None),
            ("a%00", None),
            ("%ff", None),
            ("", None),
        ] {
            assert_eq!(model_name(tail).map(|name| name.to_string()).as_deref(), expected, "{tail}");
        }
    }

    #[test]
    fn the_prefix_of_an_account_is_left_out() {
        for (path, expected) in [
            ("/v1/models", "/v1/models"),
            ("/client/v4/accounts/x/ai/v1/models", "/v1/models"),
            ("/client/v4/accounts/x/ai", "/client/v4/accounts/x/ai"),
            ("/client/v4/accounts//ai/v1/models", "/client/v4/accounts//ai/v1/models"),
            ("/client/v4/accounts/x/aim/v1", "/client/v4/accounts/x/aim/v1"),
        ] {
            assert_eq!(below_account(path), expected);
        }
    }
}
