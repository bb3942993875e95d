//! `[weights]` of the node's configuration: folders that models may have their weights in, sources that they may be fetched
//! from, and the size of the cache of fetched ones.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Serialize;
use toml::de::DeValue;

use super::secret::{SecretFile, secret};
use crate::host::HostName;
use crate::kind::{Mismatch, absolute_path, parsed, size, url};
use crate::reader::Section;
use crate::size::ByteSize;
use crate::source::{Source, SourcePrefix};

/// Most sources that are granted.
const SOURCES: usize = 64;
/// Hosts that a public hub hands the content of large files to.
const HUB_HOSTS: [&str; 2] = ["*.hf.co", "*.huggingface.co"];

/// `[weights]`: where models may have their weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Weights {
    /// Absolute paths; each grants itself and what is beneath it.
    pub folders: Vec<PathBuf>,
    /// Most bytes of fetched weights on the disk.
    pub cache: ByteSize,
    /// Hosts that may have private addresses.
    pub private_hosts: Vec<HostName>,
    /// Granted sources by the beginning of their addresses.
    pub sources: BTreeMap<SourcePrefix, SourceRule>,
}

/// `[weights.sources."PREFIX"]`: how the sources beneath a prefix are reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SourceRule {
    /// Address of the store or hub; unset: the public one.
    pub endpoint: Option<String>,
    /// Region of the store, for signatures.
    pub region: Option<String>,
    /// The secret that the server wants; unset: none.
    pub credential: Option<SecretFile>,
    /// Further hosts that the server may redirect to.
    pub redirects: Vec<HostPattern>,
    /// Certificates of the authorities that the server may have its own from; unset: those of the machine.
    pub authorities: Option<PathBuf>,
}

/// A host's name, or `*.` and the end of names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct HostPattern(String);

/// A text that is no [`HostPattern`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write a name such as \"cdn.example.com\", or \"*.example.com\" for all below it")]
pub struct HostPatternError;

impl FromStr for HostPattern {
    type Err = HostPatternError;

    fn from_str(text: &str) -> Result<Self, HostPatternError> {
        let name: HostName = text.strip_prefix("*.").unwrap_or(text).parse().map_err(|_| HostPatternError)?;
        let is_below = text.starts_with("*.");
        // `*.com` would be the domains of everybody.
        if name.is_any() || (is_below && !name.as_str().contains('.')) {
            return Err(HostPatternError);
        }
        Ok(Self(if is_below { format!("*.{name}") } else { name.as_str().to_owned() }))
    }
}

impl HostPattern {
    /// The text of the pattern.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Weights {
    fn default() -> Self {
        let cache = ByteSize::from_gib(100);
        Self { folders: Vec::new(), cache, private_hosts: Vec::new(), sources: BTreeMap::new() }
    }
}

impl Weights {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let default = Self::default();
        let most = size(ByteSize::from_gib(1)..=ByteSize::from_gib(64 << 10));
        Self {
            folders: section.list("folders", absolute_path),
            cache: section.get("cache", most, default.cache),
            private_hosts: section.list("private-hosts", private_host),
            sources: section.section("sources", |sources| {
                sources.sections(
                    SOURCES,
                    |prefix| prefix.parse().map_err(|error: crate::source::SourceError| error.to_string()),
                    SourceRule::read,
                )
            }),
        }
    }

    /// The listed folder that `path` is in, and the rest of the path beneath it. Of several the outermost: what links in it
    /// lead to is granted too.
    #[must_use]
    pub fn granted<'a>(&'a self, path: &'a Path) -> Option<(&'a Path, &'a Path)> {
        let within = self.folders.iter().filter_map(|folder| Some((folder.as_path(), path.strip_prefix(folder).ok()?)));
        within.min_by_key(|(folder, _)| folder.components().count())
    }

    /// The rule of a source; of several that grant it, that of the longest prefix.
    #[must_use]
    pub fn rule(&self, source: &Source) -> Option<(&SourcePrefix, &SourceRule)> {
        let granting = self.sources.iter().filter(|(prefix, _)| prefix.grants(source));
        granting.max_by_key(|(prefix, _)| prefix.as_str().len())
    }

    /// The key that a rule has and its scheme does not use, and why it is refused.
    pub(super) fn unused_key(&self) -> Option<String> {
        self.sources.iter().find_map(|(prefix, rule)| {
            let is_s3 = prefix.scheme() == "s3";
            let has_endpoint = is_s3 || prefix.scheme() == "hf";
            let (key, why) = if rule.endpoint.is_some() && !has_endpoint {
                ("endpoint", "it is for s3:// and hf://: the address of this source is its own")
            } else if rule.region.is_some() && !is_s3 {
                ("region", "it is for s3://")
            } else {
                return None;
            };
            Some(format!("`{key}` of {:?}: {why}: remove it", prefix.as_str()))
        })
    }
}

impl SourceRule {
    fn read(section: &mut Section<'_>) -> Self {
        Self {
            endpoint: section.get("endpoint", |value| endpoint(value).map(Some), None),
            region: section.get("region", |value| region(value).map(Some), None),
            credential: section.get("credential", |value| secret(value).map(Some), None),
            redirects: section.list("redirects", parsed("a host such as \"cdn.example.com\"")),
            authorities: section.get("authorities", |value| absolute_path(value).map(Some), None),
        }
    }

    /// Hosts that the server of a source may redirect to, beside itself.
    #[must_use]
    pub fn redirect_hosts(&self, source: &Source) -> Vec<String> {
        let own = self.redirects.iter().map(|host| host.as_str().to_owned());
        let is_public_hub = matches!(source, Source::Hub { .. }) && self.endpoint.is_none();
        own.chain(HUB_HOSTS.iter().filter(|_| is_public_hub).map(|host| (*host).to_owned())).collect()
    }
}

fn private_host(value: &DeValue<'_>) -> Result<HostName, Mismatch> {
    let expected = "a host such as \"store.internal\" or \"10.0.0.5\"";
    let host: HostName = parsed(expected)(value)?;
    if host.is_any() { Err(Mismatch::expected(expected)) } else { Ok(host) }
}

/// Scheme, host and port alone: a path, a query or a user would be lost.
fn endpoint(value: &DeValue<'_>) -> Result<String, Mismatch> {
    let wrong = || Mismatch::expected("an address such as \"https://store.example.com:9000\", without a path");
    let text = url(&["https://", "http://"])(value).map_err(|_| wrong())?;
    match text.strip_suffix('/').unwrap_or(&text).parse::<Source>() {
        Ok(source) if matches!(&source, Source::Http { path, .. } if path.is_empty()) => Ok(source.to_string()),
        Ok(_) | Err(_) => Err(wrong()),
    }
}

fn region(value: &DeValue<'_>) -> Result<String, Mismatch> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_region = |text: &&str| (1..=64).contains(&text.len()) && text.bytes().all(allowed);
    let region = value.as_str().filter(is_region).map(str::to_owned);
    region.ok_or_else(|| Mismatch::expected("a region such as \"eu-central-1\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listed_folder_grants_what_is_beneath_it_and_nothing_else() {
        let folders = ["/srv/weights", "/mnt/models/inner", "/mnt/models/"].map(PathBuf::from).into();
        let weights = Weights { folders, ..Weights::default() };
        let table = [
            ("/srv/weights", Some(("/srv/weights", ""))),
            ("/srv/weights/llama/8b", Some(("/srv/weights", "llama/8b"))),
            ("/mnt/models/x", Some(("/mnt/models/", "x"))),
            ("/mnt/models/inner/x", Some(("/mnt/models/", "inner/x"))),
            ("/srv/weights2", None),
            ("/srv", None),
            ("/", None),
        ];
        for (path, expected) in table {
            let granted = weights.granted(Path::new(path));
            assert_eq!(granted, expected.map(|(folder, rest)| (Path::new(folder), Path::new(rest))), "{path}");
        }
    }

    #[test]
    fn the_rule_of_the_longest_prefix_holds() {
        let rule = |region: &str| SourceRule { region: Some(region.to_owned()), ..SourceRule::default() };
        let sources = [("s3://bucket", "a"), ("s3://bucket/models/llama", "b"), ("s3://bucket/models", "c")];
        let sources = sources.map(|(prefix, region)| (prefix.parse().unwrap(), rule(region))).into();
        let weights = Weights { sources, ..Weights::default() };
        let table = [
            ("s3://bucket/models/llama/8b", Some("b")),
            ("s3://bucket/models/x", Some("c")),
            ("s3://bucket/x", Some("a")),
            ("s3://other/x", None),
            ("hf://meta/llama", None),
        ];
        for (source, region) in table {
            let found = weights.rule(&source.parse().unwrap()).and_then(|(_, rule)| rule.region.as_deref());
            assert_eq!(found, region, "{source}");
        }
    }

    #[test]
    fn patterns_of_hosts_name_at_least_a_domain() {
        for good in ["cdn.example.com", "*.example.com", "localhost", "10.0.0.1"] {
            good.parse::<HostPattern>().unwrap();
        }
        for bad in ["*", "*.com", "*.*.com", "https://x", "a*.example.com", ""] {
            assert!(bad.parse::<HostPattern>().is_err(), "{bad}");
        }
    }
}
