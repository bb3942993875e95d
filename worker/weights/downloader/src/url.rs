//! URLs of requests: scheme, host, port, path. Pure.

use std::fmt::{self, Display, Formatter, Write as _};

/// Longest URL, in bytes: signed ones of content networks are long.
const LONGEST: usize = 8192;

/// URL that a request is sent to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Url {
    pub(crate) origin: Origin,
    /// Path and query, escaped.
    pub(crate) path: String,
}

/// Server of a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Without TLS.
    pub(crate) is_plain: bool,
    /// Name or address, in lower case and without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// A text that is no URL that a request can be sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is no http:// or https:// URL without a user")]
pub(crate) struct BadUrl;

impl Url {
    pub(crate) fn parse(text: &str) -> Result<Self, BadUrl> {
        let is_printable = |byte: u8| byte.is_ascii_graphic() && byte != b'\\';
        if text.len() > LONGEST || !text.bytes().all(is_printable) {
            return Err(BadUrl);
        }
        let (scheme, rest) = text.split_once("://").ok_or(BadUrl)?;
        let is_plain = match scheme.to_ascii_lowercase().as_str() {
            "http" => true,
            "https" => false,
            _ => return Err(BadUrl),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at_checked(end).ok_or(BadUrl)?;
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { origin: Origin::parse(authority, is_plain)?, path })
    }

    /// The URL that a redirect names, from this one.
    pub(crate) fn join(&self, location: &str) -> Result<Self, BadUrl> {
        if let Some(rest) = location.strip_prefix("//") {
            return Self::parse(&format!("{}://{rest}", if self.origin.is_plain { "http" } else { "https" }));
        }
        if location.starts_with('/') {
            return Self::parse(&format!("{}{location}", self.origin));
        }
        Self::parse(location)
    }
}

impl Origin {
    fn parse(authority: &str, is_plain: bool) -> Result<Self, BadUrl> {
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, Some(port)),
            Some(_) | None => (authority, None),
        };
        let port = match port {
            Some(port) => port.parse().map_err(|_| BadUrl)?,
            None if is_plain => 80,
            None => 443,
        };
        let host = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(address) => address.parse::<core::net::Ipv6Addr>().map_err(|_| BadUrl)?.to_string(),
            None => host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase(),
        };
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':');
        let is_ok = port > 0 && !host.is_empty() && host.bytes().all(is_host);
        // `127.1` and `0x7f000001` are addresses for some resolvers.
        let last = host.rsplit('.').next().unwrap_or_default();
        let is_number = last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x");
        if !is_ok || (is_number && host.parse::<core::net::IpAddr>().is_err()) {
            return Err(BadUrl);
        }
        Ok(Self { is_plain, host, port })
    }

    /// Host and port as the field `Host` has them.
    pub(crate) fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let usual = if self.is_plain { 80 } else { 443 };
        if self.port == usual { host } else { format!("{host}:{}", self.port) }
    }
}

impl Display for Origin {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        write!(out, "{}://{}", if self.is_plain { "http" } else { "https" }, self.authority())
    }
}

impl Display for Url {
    /// Without the query, which may have a signature in it.
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        write!(out, "{}{}", self.origin, self.path.split('?').next().unwrap_or_default())
    }
}

/// Escapes a path or a value of a query: all but unreserved characters, and slashes where `slash` says so.
pub(crate) fn escape(text: &str, slash: bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        let is_plain =
            byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') || (slash && byte == b'/');
        if is_plain {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}"); // a String takes everything
        }
    }
    escaped
}

/// Undoes escapes of a value; `None` for one that is not of UTF-8. A plus is a space, as lists of S3 have it.
pub(crate) fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let (high, low) = (digit(rest.next())?, digit(rest.next())?);
                bytes.push(u8::try_from(high * 16 + low).ok()?);
            }
            b'+' => bytes.push(b' '),
            other => bytes.push(other),
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read() {
        let table = [
            ("https://Host.example/a?b=c#d", ("https://host.example", "/a?b=c")),
            ("http://h:8080", ("http://h:8080", "/")),
            ("https://h?x", ("https://h", "/?x")),
            ("http://[::1]:9/x", ("http://[::1]:9", "/x")),
            ("HTTPS://h:443/", ("https://h", "/")),
            ("https://h./x", ("https://h", "/x")),
            ("http://127.0.0.1/x", ("http://127.0.0.1", "/x")),
        ];
        for (text, (origin, path)) in table {
            let url = Url::parse(text).unwrap();
            assert_eq!((url.origin.to_string().as_str(), url.path.as_str()), (origin, path), "{text}");
        }
        let bad = [
            "ftp://h/x",
            "https://user@h/x",
            "https://h:0/x",
            "https://h:x/",
            "https:///x",
            "https://h x/",
            "https://h\\@evil/",
            "http://127.1/",
            "http://2130706433/",
            "http://0x7f000001/",
            "http://0177.0.0.1.5/",
            "/x",
        ];
        for text in bad {
            assert_eq!(Url::parse(text), Err(BadUrl), "{text}");
        }
    }

    #[test]
    fn redirects_are_joined() {
        let url = Url::parse("https://h/a/b?c").unwrap();
        let table = [
            ("/x?y", Some("https://h/x?y")),
            ("//other/x", Some("https://other/x")),
            ("/get?next=https://other/x", Some("https://h/get?next=https://other/x")),
            ("//other/x?next=https://h/", Some("https://other/x?next=https://h/")),
            ("https://other/x?next=//h/", Some("https://other/x?next=//h/")),
            ("http://169.254.169.254/latest", Some("http://169.254.169.254/latest")),
            ("file:///etc/passwd", None),
            ("x", None),
            ("x?next=https://other/", None),
        ];
        for (location, expected) in table {
            let joined = url.join(location).ok();
            assert_eq!(joined, expected.map(|text| Url::parse(text).unwrap()), "{location}");
        }
    }

    #[test]
    fn escapes_and_their_undoing() {
        assert_eq!(escape("a b/c+d%é", true), "a%20b/c%2Bd%25%C3%A9");
        assert_eq!(escape("a/b", false), "a%2Fb");
        assert_eq!(unescape("a%20b/c%2Bd+e%C3%A9").as_deref(), Some("a b/c+d eé"));
        assert_eq!((unescape("%f"), unescape("%zz"), unescape("%ff")), (None, None, None));
    }
}
