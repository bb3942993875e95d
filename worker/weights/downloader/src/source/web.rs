//! Files of a URL: one, or those below it that the order lists.

use super::{Listing, RemoteFile};
use crate::client::{Client, Connections, Get};
use crate::failure::Failure;
use crate::range::content_range;
use crate::url::Url;
use hyper::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG};
use omni_weights::Digest;

pub(super) async fn files(
    listing: &Listing<'_>,
    client: &Client,
    kept: &mut Connections,
    path: &str,
) -> Result<Vec<RemoteFile>, Failure> {
    if !listing.order.files.is_empty() {
        return listing.listed_below(client, kept, path).await;
    }
    let name = path.rsplit('/').next().filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| {
        Failure::Source(format!("{} names no file: list the files in `files` in [weights]", listing.order.source))
    })?;
    let url = listing.url(path.to_owned());
    Ok(vec![probe(client, kept, url, name.to_owned(), listing.order.sha256.clone()).await?])
}

/// Asks for the first byte of a file, whose response has the size of the whole. A request of its own kind, `HEAD`, is what
/// signed URLs of content networks do not answer.
pub(super) async fn probe(
    client: &Client,
    kept: &mut Connections,
    url: Url,
    path: String,
    sha256: Option<Digest>,
) -> Result<RemoteFile, Failure> {
    let get = Get { url: &url, range: Some("bytes=0-0".to_owned()), if_match: None };
    let answer = client.get(kept, &get).await?;
    let status = answer.response.status().as_u16();
    let field = |name| answer.response.headers().get(name).and_then(|value| value.to_str().ok());
    let length = || field(CONTENT_LENGTH.as_str()).and_then(|text| text.parse().ok());
    let size = match status {
        200 | 206 => match field(CONTENT_RANGE.as_str()) {
            Some(range) => content_range(range).and_then(|(_, size)| size),
            None if status == 200 => length(),
            None => None,
        },
        // An empty file has no first byte.
        416 => field(CONTENT_RANGE.as_str()).filter(|range| range.ends_with("*/0")).map(|_| 0),
        401 | 403 => return Err(Failure::Forbidden { url: url.to_string(), status }),
        404 | 410 => return Err(Failure::Missing { url: url.to_string() }),
        _ => return Err(Failure::Status { url: url.to_string(), status }),
    };
    let what = || "no size of the file".to_owned();
    let size = size.ok_or_else(|| Failure::Odd { url: url.to_string(), what: what() })?;
    let etag = field(ETAG.as_str()).filter(|_| answer.origin == url.origin).map(str::to_owned);
    // Servers that send all of it are not listened to.
    kept.close();
    Ok(RemoteFile { path, url, size, sha256, etag })
}
