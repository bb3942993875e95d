//! Files of a repository of a hub with the API of Hugging Face's. The commit is asked for first, so that all files are of
//! one state.

use super::{Listing, RemoteFile};
use crate::client::{Client, Connections};
use crate::failure::Failure;
use crate::url::{Url, escape};
use omni_weights::{Digest, MOST_FILES};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The public hub.
pub(super) const PUBLIC: &str = "https://huggingface.co";
/// Pages of a list.
const PAGES: usize = 64;

#[derive(Debug, Deserialize)]
struct Revision {
    sha: String,
}

#[derive(Debug, Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    lfs: Option<Lfs>,
}

/// A large file: its id is the SHA-256 of its content.
#[derive(Debug, Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

pub(super) async fn files(
    listing: &Listing<'_>,
    client: &Client,
    kept: &mut Connections,
    repository: &str,
    revision: &str,
) -> Result<Vec<RemoteFile>, Failure> {
    let commit = commit(listing, client, kept, repository, revision).await?;
    let mut wanted = listing.order.files.clone();
    let everything = wanted.is_empty();
    let mut files = Vec::new();
    let mut next = Some(listing.url(format!("/api/models/{repository}/tree/{commit}?recursive=true")));
    for _ in 0..PAGES {
        let Some(url) = next.take() else { break };
        let (body, link) = client.text(kept, &url).await?;
        let entries: Vec<Entry> = parsed(&body, &url)?;
        for entry in entries.into_iter().filter(|entry| entry.kind == "file") {
            match wanted.remove(&entry.path) {
                Some(sha256) => files.push(file(listing, repository, &commit, entry, sha256)),
                None if everything => files.push(file(listing, repository, &commit, entry, None)),
                None => {}
            }
        }
        next = link.as_deref().and_then(next_page).and_then(|text| url.join(text).ok());
        // The rest of a list is the hub's own.
        next = next.filter(|url| url.origin == listing.endpoint.origin && files.len() <= MOST_FILES);
    }
    missing(&wanted, &listing.order.source)?;
    Ok(files)
}

fn file(listing: &Listing<'_>, repository: &str, commit: &str, entry: Entry, given: Option<Digest>) -> RemoteFile {
    let url = listing.url(format!("/{repository}/resolve/{commit}/{}", escape(&entry.path, true)));
    let size = entry.lfs.as_ref().map_or(entry.size, |lfs| lfs.size);
    let known = entry.lfs.and_then(|lfs| Digest::parse(lfs.oid.strip_prefix("sha256:").unwrap_or(&lfs.oid)).ok());
    RemoteFile { path: entry.path, url, size, sha256: given.or(known), etag: None }
}

/// The commit that a branch or a tag is now.
async fn commit(
    listing: &Listing<'_>,
    client: &Client,
    kept: &mut Connections,
    repository: &str,
    revision: &str,
) -> Result<String, Failure> {
    let url = listing.url(format!("/api/models/{repository}/revision/{}", escape(revision, false)));
    let (body, _) = client.text(kept, &url).await?;
    let Revision { sha } = parsed(&body, &url)?;
    if (7..=64).contains(&sha.len()) && sha.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(sha);
    }
    Err(Failure::Odd { url: url.to_string(), what: "a commit that is none".to_owned() })
}

fn missing(wanted: &BTreeMap<String, Option<Digest>>, source: &str) -> Result<(), Failure> {
    match wanted.keys().next() {
        Some(path) => Err(Failure::Missing { url: format!("{source}/{path}") }),
        None => Ok(()),
    }
}

fn parsed<'a, T: Deserialize<'a>>(body: &'a [u8], url: &Url) -> Result<T, Failure> {
    serde_json::from_slice(body).map_err(|error| Failure::Odd { url: url.to_string(), what: error.to_string() })
}

/// The next page of a list, in a field such as `<https://hub/api?cursor=x>; rel="next"`.
fn next_page(link: &str) -> Option<&str> {
    let part = link.split(',').find(|part| part.contains("rel=\"next\""))?;
    part.trim().strip_prefix('<')?.split('>').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_found() {
        let link = "<https://hub/a?cursor=1>; rel=\"first\", <https://hub/a?cursor=2>; rel=\"next\"";
        assert_eq!(next_page(link), Some("https://hub/a?cursor=2"));
        assert_eq!((next_page("<https://hub/a>; rel=\"prev\""), next_page("")), (None, None));
    }

    #[test]
    fn entries_of_a_tree_are_read() {
        let text = "[{\"type\":\"directory\",\"path\":\"a\",\"oid\":\"x\"},{\"type\":\"file\",\"path\":\"a/b\",\"size\":3,\
                    \"oid\":\"x\",\"lfs\":{\"oid\":\"00\",\"size\":4,\"pointerSize\":1}}]";
        let entries: Vec<Entry> = serde_json::from_str(text).unwrap();
        assert_eq!((entries.len(), entries[1].lfs.as_ref().unwrap().size), (2, 4));
    }
}
