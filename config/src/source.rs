//! Sources of weights that a node fetches: objects of a bucket, files of a hub's repository, a URL. Pure.
//!
//! Written by authors in `[weights] source` and by operators as prefixes in `[weights.sources]`. Invariant: a parsed
//! source has no user, query, escape or dot segment in it, so that one that begins with a granted prefix is beneath it.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// Longest source, in bytes.
const LONGEST: usize = 1024;
/// Revision of a hub's repository where none is named.
const REVISION: &str = "main";

/// Source of weights.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// `s3://BUCKET/KEY`: an object, and all beneath `KEY/`.
    S3 {
        /// Name of the bucket.
        bucket: String,
        /// Key of an object, or the beginning of keys; without a slash at its end.
        key: String,
    },
    /// `hf://ORGANISATION/NAME@REVISION`: the files of a repository of a hub.
    Hub {
        /// Name of the repository, with its organisation.
        repository: String,
        /// Branch, tag or commit.
        revision: String,
    },
    /// `https://HOST/PATH`: a file, or a folder of files that the manifest lists.
    Http {
        /// Without TLS: `http://`.
        is_plain: bool,
        /// Host and perhaps port, in lower case.
        authority: String,
        /// Path with its slash at the beginning, without one at its end.
        path: String,
    },
}

/// A text that is no [`Source`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// No known scheme.
    #[error("write s3://BUCKET/KEY, hf://ORGANISATION/NAME@REVISION or https://HOST/PATH")]
    Scheme,
    /// Something that is not plain.
    #[error("write it without user, query, `%`, `..`, empty parts and spaces")]
    NotPlain,
    /// Too long.
    #[error("it has more than {LONGEST} bytes")]
    TooLong,
    /// A name of a bucket that no store has.
    #[error("a bucket's name has 3 to 63 lower-case letters, digits, dots and dashes")]
    Bucket,
    /// A name of a repository that no hub has.
    #[error("a repository is ORGANISATION/NAME, of letters, digits, `-`, `_` and `.`")]
    Repository,
}

impl FromStr for Source {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        if text.len() > LONGEST {
            return Err(SourceError::TooLong);
        }
        let (scheme, rest) = text.split_once("://").ok_or(SourceError::Scheme)?;
        match scheme {
            "s3" => {
                let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
                bucket_name(bucket)?;
                Ok(Self::S3 { bucket: bucket.to_owned(), key: plain(key)?.to_owned() })
            }
            "hf" => {
                let (repository, revision) = rest.split_once('@').unwrap_or((rest, REVISION));
                repository_name(repository)?;
                let revision = plain(revision).ok().filter(|revision| !revision.is_empty());
                let revision = revision.ok_or(SourceError::NotPlain)?.to_owned();
                Ok(Self::Hub { repository: repository.to_owned(), revision })
            }
            "http" | "https" => {
                let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
                let path = plain(path)?;
                let path = if path.is_empty() { String::new() } else { format!("/{path}") };
                Ok(Self::Http { is_plain: scheme == "http", authority: host_and_port(authority)?, path })
            }
            _ => Err(SourceError::Scheme),
        }
    }
}

impl Display for Source {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::S3 { bucket, key } if key.is_empty() => write!(out, "s3://{bucket}"),
            Self::S3 { bucket, key } => write!(out, "s3://{bucket}/{key}"),
            Self::Hub { repository, revision } => write!(out, "hf://{repository}@{revision}"),
            Self::Http { is_plain: true, authority, path } => write!(out, "http://{authority}{path}"),
            Self::Http { is_plain: false, authority, path } => write!(out, "https://{authority}{path}"),
        }
    }
}

impl Serialize for Source {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Beginning of sources that an operator grants: a source, a bucket, an organisation (`hf://ORGANISATION`), a host, or
/// the whole hub (`hf://`). It grants itself and what is beneath it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct SourcePrefix(String);

impl SourcePrefix {
    /// The prefix without a slash at its end, and for the whole hub `hf://`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if the source is this prefix or beneath it. The revision of a repository does not matter.
    #[must_use]
    pub fn grants(&self, source: &Source) -> bool {
        let location = match source {
            Source::Hub { repository, .. } if self.0 == "hf://" => return !repository.is_empty(),
            Source::Hub { repository, .. } => format!("hf://{repository}"),
            Source::S3 { .. } | Source::Http { .. } => source.to_string(),
        };
        location.strip_prefix(&self.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Scheme of what it grants.
    #[must_use]
    pub fn scheme(&self) -> &str {
        self.0.split_once("://").map_or("", |(scheme, _)| scheme)
    }
}

impl FromStr for SourcePrefix {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        if text == "hf://" {
            return Ok(Self(text.to_owned()));
        }
        let bare = text.strip_suffix('/').unwrap_or(text);
        if let Some(organisation) = bare.strip_prefix("hf://") {
            let both = if organisation.contains('/') { organisation.to_owned() } else { format!("{organisation}/x") };
            repository_name(&both)?;
            return Ok(Self(bare.to_owned()));
        }
        Ok(Self(bare.parse::<Source>()?.to_string()))
    }
}

/// Returns true if a path below a folder of weights is plain: parts of printable characters, none of them `.` or `..`.
#[must_use]
pub fn is_file_path(path: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty() && part.len() <= 255 && part != "." && part != ".." && !part.contains(char::is_control)
    };
    path.len() <= LONGEST && path.split('/').all(is_part) && !path.contains('\\')
}

fn plain(path: &str) -> Result<&str, SourceError> {
    let path = path.strip_suffix('/').unwrap_or(path);
    let is_part = |part: &str| !part.is_empty() && part != "." && part != "..";
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"%?#\\@\"<>".contains(&byte);
    let ok = path.is_empty() || (path.bytes().all(is_plain) && path.split('/').all(is_part));
    if ok { Ok(path) } else { Err(SourceError::NotPlain) }
}

fn bucket_name(bucket: &str) -> Result<(), SourceError> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-');
    let ok = (3..=63).contains(&bucket.len()) && bucket.bytes().all(allowed) && !bucket.contains("..");
    if ok && !bucket.starts_with(['.', '-']) { Ok(()) } else { Err(SourceError::Bucket) }
}

fn repository_name(repository: &str) -> Result<(), SourceError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_part = |part: &str| (1..=96).contains(&part.len()) && part.bytes().all(allowed) && !part.starts_with('.');
    let parts = repository.split('/').count();
    if parts == 2 && repository.split('/').all(is_part) { Ok(()) } else { Err(SourceError::Repository) }
}

fn host_and_port(authority: &str) -> Result<String, SourceError> {
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !host.ends_with(':') && !port.contains(']') => (host, Some(port)),
        Some(_) | None => (authority, None),
    };
    let is_name = |host: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        !host.is_empty() && host.split('.').all(|label| !label.is_empty() && label.bytes().all(allowed))
    };
    let is_host = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(address) => address.parse::<core::net::Ipv6Addr>().is_ok(),
        None => host.len() <= 253 && is_name(host),
    };
    let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|number| number > 0));
    if is_host && is_port { Ok(authority.to_ascii_lowercase()) } else { Err(SourceError::NotPlain) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_read_and_written() {
        let table = [
            ("s3://bucket/models/llama/", "s3://bucket/models/llama"),
            ("s3://bucket", "s3://bucket"),
            ("hf://meta/llama", "hf://meta/llama@main"),
            ("hf://meta/llama@v1.0", "hf://meta/llama@v1.0"),
            ("https://Files.Example.com:8443/a/b.bin", "https://files.example.com:8443/a/b.bin"),
            ("https://[2001:db8::1]/a", "https://[2001:db8::1]/a"),
            ("http://10.0.0.1:80/a", "http://10.0.0.1:80/a"),
        ];
        for (text, shown) in table {
            let source: Source = text.parse().unwrap();
            assert_eq!((source.to_string().as_str(), source.to_string().parse()), (shown, Ok(source)), "{text}");
        }
    }

    #[test]
    fn what_is_not_plain_is_refused() {
        use SourceError::{Bucket, NotPlain, Repository, Scheme};
        let table = [
            ("bucket/key", Scheme),
            ("ftp://host/x", Scheme),
            ("gs://bucket/x", Scheme),
            ("s3://Bucket/key", Bucket),
            ("s3://b/key", Bucket),
            ("s3://a..b/key", Bucket),
            ("s3://bucket/a/../b", NotPlain),
            ("s3://bucket//b", NotPlain),
            ("hf://llama", Repository),
            ("hf://a/b/c", Repository),
            ("hf://../b", Repository),
            ("hf://a/b@", NotPlain),
            ("hf://a/b@../x", NotPlain),
            ("https://user@host/x", NotPlain),
            ("https://host@evil/x", NotPlain),
            ("https:///x", NotPlain),
            ("https://host/x?y", NotPlain),
            ("https://host/x#y", NotPlain),
            ("https://host/%2e%2e/x", NotPlain),
            ("https://host/a/./b", NotPlain),
            ("https://host/a b", NotPlain),
            ("https://host\\evil/x", NotPlain),
            ("https://host:0/x", NotPlain),
            ("https://host:99999/x", NotPlain),
            ("https://ho\u{301}st/x", NotPlain),
            ("https://[::1/x", NotPlain),
        ];
        for (text, error) in table {
            assert_eq!(text.parse::<Source>(), Err(error), "{text}");
        }
        assert_eq!(format!("https://host/{}", "x".repeat(LONGEST)).parse::<Source>(), Err(SourceError::TooLong));
    }

    #[test]
    fn a_prefix_grants_itself_and_what_is_beneath_it() {
        let table = [
            ("s3://bucket", "s3://bucket/a", true),
            ("s3://bucket/", "s3://bucket/a", true),
            ("s3://bucket", "s3://bucket2/a", false),
            ("s3://bucket/models", "s3://bucket/models", true),
            ("s3://bucket/models/", "s3://bucket/models/a", true),
            ("s3://bucket/models", "s3://bucket/models2/a", false),
            ("hf://", "hf://meta/llama", true),
            ("hf://", "s3://bucket/a", false),
            ("hf://meta", "hf://meta/llama@v1", true),
            ("hf://meta", "hf://meta2/llama", false),
            ("hf://meta/llama", "hf://meta/llama@v1", true),
            ("hf://meta/llama", "hf://meta/llama2", false),
            ("https://host", "https://host/a", true),
            ("https://host", "https://host.evil.com/a", false),
            ("https://host", "https://host:8443/a", false),
            ("https://host", "http://host/a", false),
            ("https://HOST/a", "https://host/a/b", true),
        ];
        for (prefix, source, granted) in table {
            let (prefix, source): (SourcePrefix, Source) = (prefix.parse().unwrap(), source.parse().unwrap());
            assert_eq!(prefix.grants(&source), granted, "{} {source}", prefix.as_str());
        }
    }

    #[test]
    fn paths_of_files_stay_in_their_folder() {
        for good in ["a", "a/b.bin", "tokenizer config.json", "é/ü"] {
            assert!(is_file_path(good), "{good}");
        }
        for bad in ["", "/a", "a/", "a//b", "../a", "a/..", ".", "a\nb", "a\\b"] {
            assert!(!is_file_path(bad), "{bad}");
        }
    }
}
