//! Names of the node, as clients write them in `Host`.
//!
//! Invariant: a name is in the form that the scheduler compares: lower case, without a port, a trailing dot or
//! brackets.

use serde::Serialize;
use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;
use std::str::FromStr;

/// Longest name, in bytes.
const LONGEST: usize = 253;

/// A host's name or address, or `*` for all.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct HostName(String);

/// A text that is no [`HostName`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("write a name or an address without a scheme or a port, or \"*\" for all")]
pub struct HostNameError;

impl HostName {
    /// The name in the form that is compared.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true for `*`.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.0 == "*"
    }
}

impl FromStr for HostName {
    type Err = HostNameError;

    fn from_str(text: &str) -> Result<Self, HostNameError> {
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        if let Ok(address) = bare.parse::<IpAddr>() {
            return Ok(Self(address.to_canonical().to_string()));
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        let is_label = |label: &str| {
            !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        };
        let is_name = name.len() <= LONGEST && name.split('.').all(is_label);
        if name == "*" || is_name { Ok(Self(name.to_ascii_lowercase())) } else { Err(HostNameError) }
    }
}

impl Display for HostName {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_one_form() {
        for (text, name) in [
            ("Models.Example.COM.", Some("models.example.com")),
            ("omni_1", Some("omni_1")),
            ("10.0.0.1", Some("10.0.0.1")),
            ("[::1]", Some("::1")),
            ("::ffff:127.0.0.1", Some("127.0.0.1")),
            ("*", Some("*")),
            ("*.example.com", None),
            ("http://example.com", None),
            ("example.com:80", None),
            ("a..b", None),
            ("", None),
            ("a b", None),
            ("ü.example", None),
        ] {
            assert_eq!(text.parse::<HostName>().ok().as_ref().map(HostName::as_str), name, "{text}");
        }
        assert!("a.".repeat(127).parse::<HostName>().is_ok());
        assert!("a".repeat(254).parse::<HostName>().is_err());
    }
}
