//! Files of a repository of a hub with the API of Hugging Face's. The commit is asked for first, so that all files are of
//! one state.

use super::{Listing, RemoteFile};
use crate::client::Connections;
use crate::failure::Failure;
use crate::url::{Url, escape};
use omni_weights::{Digest, MOST_FILES};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The public hub.
pub(super) const PUBLIC: &str = "https://huggingface.co";
/// Pages of a list.
const PAGES: usize = 64;
/// Bytes of a page.
const MOST_PAGE: usize = 32 << 20;

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
    connections: &mut Connections,
    repository: &str,
    revision: &str,
) -> Result<Vec<RemoteFile>, Failure> {
    let revision = listing.url(format!("/api/models/{repository}/revision/{}", escape(revision, false)));
    let commit = commit(connections, &revision).await?;
    let mut wanted = listing.order.files.clone();
    let everything = wanted.is_empty();
    let mut files = Vec::new();
    let mut next = Some(listing.url(format!("/api/models/{repository}/tree/{commit}?recursive=true")));
    let mut pages = 0;
    while let Some(url) = next.take() {
        pages += 1;
        if pages > PAGES {
            return Err(super::too_long(listing.order, &format!("{PAGES} pages of files")));
        }
        let (body, link) = connections.text(&url, MOST_PAGE).await?;
        let entries: Vec<Entry> = parsed(&body, &url)?;
        for entry in entries.into_iter().filter(|entry| entry.kind == "file") {
            match wanted.remove(&entry.path) {
                Some(sha256) => files.push(file(listing, repository, &commit, entry, sha256)),
                None if everything => files.push(file(listing, repository, &commit, entry, None)),
                None => {}
            }
        }
        let is_all = !everything && wanted.is_empty();
        if is_all || files.len() > MOST_FILES {
            break; // too many are refused with their source
        }
        next = link.as_deref().map(|link| following(&url, link)).transpose()?.flatten();
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
async fn commit(connections: &mut Connections, url: &Url) -> Result<String, Failure> {
    let (body, _) = connections.text(url, MOST_PAGE).await?;
    let Revision { sha } = parsed(&body, url)?;
    if (7..=64).contains(&sha.len()) && sha.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(sha);
    }
    Err(Failure::odd(url, "a commit that is none"))
}

fn missing(wanted: &BTreeMap<String, Option<Digest>>, source: &str) -> Result<(), Failure> {
    match wanted.keys().next() {
        Some(path) => Err(Failure::Missing { url: format!("{source}/{path}") }),
        None => Ok(()),
    }
}

fn parsed<'a, T: Deserialize<'a>>(body: &'a [u8], url: &Url) -> Result<T, Failure> {
    serde_json::from_slice(body).map_err(|error| Failure::odd(url, error.to_string()))
}

/// Finds the page of a list after `url`, by the field `Link`. Without it a list would be cut off unseen: one that
/// cannot be asked for is an error. All of a list is the hub's own.
fn following(url: &Url, link: &str) -> Result<Option<Url>, Failure> {
    let odd = || Failure::odd(url, format!("the next page of a list: {}", link.escape_debug()));
    let Some(target) = next_page(link).map_err(|Unread| odd())? else { return Ok(None) };
    let next = url.join(target).ok().filter(|next| next.origin == url.origin);
    next.map(Some).ok_or_else(odd)
}

/// A field `Link` that has a next page, but not its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Unread;

/// Finds the next page of a list in a field such as `<https://hub/api?cursor=x>; rel="next"`.
fn next_page(link: &str) -> Result<Option<&str>, Unread> {
    let mut rest = link;
    while let Some((_, opened)) = rest.split_once('<') {
        let (target, after) = opened.split_once('>').ok_or(Unread)?;
        let parameters = after.split_once('<').map_or(after, |(parameters, _)| parameters);
        if is_next(parameters) {
            return Ok(Some(target));
        }
        rest = after;
    }
    if is_next(rest) { Err(Unread) } else { Ok(None) }
}

/// Finds `rel="next"` among the parameters of a link, in any of the forms that the standard allows.
fn is_next(parameters: &str) -> bool {
    parameters.split([';', ',']).filter_map(|parameter| parameter.split_once('=')).any(|(name, value)| {
        let mut kinds = value.trim().trim_matches('"').split_ascii_whitespace();
        name.trim().eq_ignore_ascii_case("rel") && kinds.any(|kind| kind.eq_ignore_ascii_case("next"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_list_goes_on_or_is_an_error() {
        let page = Url::parse("https://hub/a").unwrap();
        let two = Ok(Some("https://hub/a?cursor=2,3"));
        let table = [
            ("<https://hub/a?cursor=1>; rel=\"first\", <https://hub/a?cursor=2,3>; rel=\"next\"", two),
            ("<https://hub/a?cursor=2,3>;REL=next;title=x, <https://hub/b>; rel=prev", two),
            ("</a?cursor=2,3>; rel=\"last next\"", two),
            ("<https://hub/a>; rel=\"prev\"", Ok(None)),
            ("", Ok(None)),
            ("<https://elsewhere/a>; rel=\"next\"", Err(())),
            ("<http://hub/a>; rel=\"next\"", Err(())),
            ("<a?cursor=2>; rel=\"next\"", Err(())),
            ("<https://hub/a; rel=\"next\"", Err(())),
            ("https://hub/a; rel=\"next\"", Err(())),
        ];
        for (link, expected) in table {
            let next = following(&page, link);
            let expected = expected.map(|next| next.map(|text| Url::parse(text).unwrap()));
            assert_eq!(next.map_err(|failure| assert!(failure.is_permanent())), expected, "{link}");
        }
    }

    #[test]
    fn entries_of_a_tree_are_read() {
        let text = "[{\"type\":\"directory\",\"path\":\"a\",\"oid\":\"x\"},{\"type\":\"file\",\"path\":\"a/b\",\"size\":3,\
                    \"oid\":\"x\",\"lfs\":{\"oid\":\"00\",\"size\":4,\"pointerSize\":1}}]";
        let entries: Vec<Entry> = serde_json::from_str(text).unwrap();
        assert_eq!((entries.len(), entries[1].lfs.as_ref().unwrap().size), (2, 4));
    }

    proptest! {
        #[test]
        fn no_field_panics(link in "[<>;,=\" a-z/:]{0,40}") {
            let _ = following(&Url::parse("https://hub/a").unwrap(), &link);
        }
    }
}
