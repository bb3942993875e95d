//! `[usage]` of the node's configuration: records of what requests used.

use std::path::{Path, PathBuf};

use serde::Serialize;
use toml::de::DeValue;

use super::secret::{SecretFile, secret};
use crate::kind::{Mismatch, absolute_path, choice, size};
use crate::reader::Section;
use crate::size::ByteSize;

/// Longest URL of a server.
const LONGEST_URL: usize = 2048;

/// `[usage]`: records of what requests used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Usage {
    /// Bytes of records kept on the disk.
    pub keep: ByteSize,
    /// Behaviour when no record can be kept.
    pub when_full: WhenFull,
    /// Where the records are handed over; unset: nowhere.
    pub sink: Option<Sink>,
    /// The token that the sink's server wants; unset: none.
    pub token: Option<SecretFile>,
    /// Certificates of the authorities that the sink's server may have its own from; unset: those of the machine.
    pub authorities: Option<PathBuf>,
}

/// Behaviour when no record can be kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenFull {
    /// Records are lost, and counted.
    #[default]
    Lose,
    /// Requests are refused.
    Refuse,
}

/// Where records are handed over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Sink {
    /// A file that they are appended to.
    File(PathBuf),
    /// The URL of a server that they are sent to.
    Url(String),
}

impl Default for Usage {
    fn default() -> Self {
        let when_full = WhenFull::default();
        Self { keep: ByteSize::from_mib(256), when_full, sink: None, token: None, authorities: None }
    }
}

impl Usage {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let default = Self::default();
        let keep = size(ByteSize::from_mib(64)..=ByteSize::from_gib(64 << 10));
        let full = [("lose", WhenFull::Lose), ("refuse", WhenFull::Refuse)];
        Self {
            keep: section.get("keep", keep, default.keep),
            when_full: section.get("when-full", choice(&full), default.when_full),
            sink: section.get("sink", |value| sink(value).map(Some), default.sink),
            token: section.get("token", |value| secret(value).map(Some), default.token),
            authorities: section.get("authorities", |value| absolute_path(value).map(Some), default.authorities),
        }
    }

    /// The key that only a server as a sink needs, if there is none, and why it is refused.
    pub(super) fn without_server(&self) -> Option<(&'static str, String)> {
        if matches!(self.sink, Some(Sink::Url(_))) {
            return None;
        }
        let key = if self.token.is_some() { "token" } else { self.authorities.as_ref().map(|_| "authorities")? };
        Some((key, "it is for a server: set `sink` to a URL".to_owned()))
    }
}

fn sink(value: &DeValue<'_>) -> Result<Sink, Mismatch> {
    let wrong =
        || Mismatch::expected("a URL such as \"https://usage.example.com/records\", or an absolute path of a file");
    if let Ok(path) = absolute_path(value) {
        return if is_file(&path) { Ok(Sink::File(path)) } else { Err(wrong()) };
    }
    value.as_str().and_then(server_url).map(|url| Sink::Url(url.to_owned())).ok_or_else(wrong)
}

/// The text, if it is the URL of a server.
pub(super) fn server_url(text: &str) -> Option<&str> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"))?;
    let host = rest.split(['/', '?']).next().unwrap_or_default();
    // A password in a URL would be printed with every message about it.
    let is_url = !host.is_empty() && !host.contains('@') && text.bytes().all(|byte| byte.is_ascii_graphic());
    Some(text).filter(|text| is_url && !text.contains('#') && text.len() <= LONGEST_URL)
}

fn is_file(path: &Path) -> bool {
    path.file_name().is_some() && !path.as_os_str().as_encoded_bytes().ends_with(b"/")
}
