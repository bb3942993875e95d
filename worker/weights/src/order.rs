//! Order of the launcher to the downloader: what to fetch, and by which rules of the node.

use crate::digest::Digest;
use omni_config::Source;
use omni_config::node::{SecretFile, Weights};
use omni_node_protocol::launcher::WeightsRequest;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;

/// Where the downloader finds its order, inside its sandbox.
pub const ORDER: &str = "/order.json";
/// Where it writes.
pub const WORK: &str = "/work";
/// Where it finds the files that the node has, by their digests.
pub const FILES: &str = "/files";
/// Environment variable with the secret that the server wants.
pub const SECRET: &str = "OMNI_WEIGHTS_SECRET";

/// Files in one order.
const MOST_FILES: usize = 4096;

/// Weights to fetch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Address of the source.
    pub source: String,
    /// SHA-256 of a source that is one file.
    pub sha256: Option<Digest>,
    /// Files to fetch, each perhaps with its SHA-256; empty: all.
    pub files: BTreeMap<String, Option<Digest>>,
    /// Address of the store or hub; `None`: the public one.
    pub endpoint: Option<String>,
    /// Region of the store.
    pub region: Option<String>,
    /// Name of the credential that requests are authorised with, for messages.
    #[serde(default)]
    pub credential: Option<String>,
    /// Further hosts that the server may redirect to.
    pub redirects: Vec<String>,
    /// Hosts that may have private addresses.
    pub private_hosts: Vec<String>,
    /// File with certificates of authorities, inside the sandbox; `None`: those of the machine.
    pub authorities: Option<String>,
    /// Most bytes of all files.
    pub most_bytes: u64,
    /// Bytes that downloads leave free on the disk.
    #[serde(default)]
    pub reserve: u64,
    /// Identifier of the machine's boot. What was written before it may not be on the disk.
    pub boot: String,
}

impl Order {
    /// The order for a request, by the node's configuration; refused when that does not grant the source. `reserve`: bytes
    /// that downloads leave free on the disk.
    ///
    /// # Errors
    /// A message for the model's author.
    pub fn new(request: &WeightsRequest, config: &Weights, reserve: u64, boot: &str) -> Result<Self, String> {
        let source: Source = request.source.parse().map_err(|error| format!("`source` in [weights]: {error}"))?;
        let Some((_, rule)) = config.rule(&source) else {
            return Err(format!(
                "weights may not be fetched from `{source}`: the operator has to list it under `[weights.sources]` of the \
                 node's configuration"
            ));
        };
        let digest = |text: &str| Digest::parse(text).map_err(|bad| format!("a digest in [weights]: {bad}"));
        let sha256 = request.sha256.as_deref().map(digest).transpose()?;
        if request.files.len() > MOST_FILES {
            return Err(format!("`files` in [weights] lists more than {MOST_FILES} files"));
        }
        let mut files = BTreeMap::new();
        for (path, text) in &request.files {
            if !omni_config::source::is_file_path(path) {
                return Err(format!("`files` in [weights] has `{}`, which is no path below it", path.escape_debug()));
            }
            let digest = if text.is_empty() { None } else { Some(digest(text)?) };
            files.insert(path.clone(), digest);
        }
        Ok(Self {
            source: source.to_string(),
            sha256,
            files,
            endpoint: rule.endpoint.clone(),
            region: rule.region.clone(),
            credential: rule.credential.as_ref().map(|secret| match secret {
                SecretFile::Path(path) => path.display().to_string(),
                SecretFile::Credential(name) => name.clone(),
            }),
            redirects: rule.redirect_hosts(&source),
            private_hosts: config.private_hosts.iter().map(ToString::to_string).collect(),
            authorities: None,
            most_bytes: config.cache.bytes(),
            reserve,
            boot: boot.to_owned(),
        })
    }

    /// Name of the order in the cache: equal sources with equal digests have one.
    #[must_use]
    pub fn key(&self) -> Digest {
        let mut hasher = Sha256::new();
        let mut part = |text: &str| {
            hasher.update((text.len() as u64).to_le_bytes());
            hasher.update(text);
        };
        part(&self.source);
        part(self.endpoint.as_deref().unwrap_or_default());
        part(self.sha256.as_ref().map_or("", Digest::as_str));
        for (path, digest) in &self.files {
            part(path);
            part(digest.as_ref().map_or("", Digest::as_str));
        }
        Digest::of(hasher)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_config::NodeConfig;

    fn request(source: &str) -> WeightsRequest {
        WeightsRequest { source: source.to_owned(), sha256: None, files: BTreeMap::new() }
    }

    fn config() -> Weights {
        let text = "[weights.sources.\"s3://bucket/models\"]\nendpoint = \"http://10.0.0.5:9000\"\nregion = \"eu-1\"\n\
                    [weights.sources.\"hf://meta\"]\n[weights.sources.\"https://host\"]\nredirects = [\"*.cdn.net\"]\n";
        NodeConfig::parse(text).unwrap().weights
    }

    #[test]
    fn an_order_has_the_rules_of_the_source_that_is_granted() {
        let order = |source: &str| Order::new(&request(source), &config(), 0, "boot").unwrap();
        let s3 = order("s3://bucket/models/llama/");
        assert_eq!(s3.source, "s3://bucket/models/llama");
        assert_eq!(
            (s3.endpoint.as_deref(), s3.region.as_deref(), s3.redirects.len()),
            (Some("http://10.0.0.5:9000"), Some("eu-1"), 0)
        );
        assert_eq!(order("hf://meta/llama").redirects, ["*.hf.co", "*.huggingface.co"]);
        assert_eq!(order("https://host/w.bin").redirects, ["*.cdn.net"]);
    }

    #[test]
    fn what_the_node_does_not_grant_is_refused() {
        let mut requests = vec![
            (request("s3://bucket/other"), "[weights.sources]"),
            (request("s3://bucket/models/../other"), "without user"),
            (request("https://host.evil/w"), "[weights.sources]"),
            (request("http://host/w"), "[weights.sources]"),
            (request("file:///etc"), "s3://BUCKET"),
            (request("hf://other/llama"), "[weights.sources]"),
        ];
        let mut escaping = request("hf://meta/llama");
        escaping.files.insert("../x".to_owned(), String::new());
        requests.push((escaping, "no path below"));
        let mut digest = request("https://host/w");
        digest.sha256 = Some("../../x".to_owned());
        requests.push((digest, "64 lower-case"));
        for (request, why) in requests {
            let error = Order::new(&request, &config(), 0, "boot").unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn equal_orders_have_one_key_whatever_the_boot() {
        let order = |source: &str, boot: &str| Order::new(&request(source), &config(), 0, boot).unwrap();
        assert_eq!(order("hf://meta/llama", "1").key(), order("hf://meta/llama@main", "2").key());
        assert_ne!(order("hf://meta/llama", "1").key(), order("hf://meta/llama@v1", "1").key());
        let pinned = Order { sha256: Some(order("https://host/w", "1").key()), ..order("https://host/w", "1") };
        assert_ne!(order("https://host/w", "1").key(), pinned.key());
    }
}
