//! Files of a URL: one, or those below it that the order lists.

use super::{Listing, RemoteFile};
use crate::client::{Connections, Get};
use crate::failure::Failure;
use crate::range::content_range;
use crate::url::Url;
use hyper::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG};
use omni_weights::Digest;

pub(super) async fn files(
    listing: &Listing<'_>,
    connections: &mut Connections,
    path: &str,
) -> Result<Vec<RemoteFile>, Failure> {
    if !listing.order.files.is_empty() {
        return listing.listed_below(connections, path).await;
    }
    let name = path.rsplit('/').next().filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| {
        Failure::Source(format!("{} names no file: list the files in `files` in [weights]", listing.order.source))
    })?;
    let url = listing.url(path.to_owned());
    Ok(vec![probe(connections, url, name.to_owned(), listing.order.sha256.clone()).await?])
}

/// Asks for the first byte of a file, whose response has the size of the whole. A request of its own kind, `HEAD`, is what
/// signed URLs of content networks do not answer.
pub(super) async fn probe(
    connections: &mut Connections,
    url: Url,
    path: String,
    sha256: Option<Digest>,
) -> Result<RemoteFile, Failure> {
    let get = Get { url: &url, range: Some("bytes=0-0".to_owned()), if_match: None };
    let answer = connections.get(&get).await?;
    let range = answer.field(&CONTENT_RANGE);
    let size = match (answer.status(), range) {
        (200 | 206, Some(range)) => content_range(range).and_then(|(_, size)| size),
        (200, None) => answer.field(&CONTENT_LENGTH).and_then(|text| text.parse().ok()),
        (206, None) => None,
        // An empty file has no first byte.
        (416, range) => range.filter(|range| range.ends_with("*/0")).map(|_| 0),
        _ => return Err(connections.failure(&url, &answer)),
    };
    let size = size.ok_or_else(|| Failure::odd(&url, "no size of the file"))?;
    let etag = answer.field(&ETAG).filter(|_| answer.origin == url.origin).map(str::to_owned);
    // Servers that send all of it are not listened to.
    connections.close();
    Ok(RemoteFile { path, url, size, sha256, etag })
}
