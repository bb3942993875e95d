//! Files of a bucket: an object, or all below a prefix (`ListObjectsV2`).

use super::{Listing, RemoteFile};
use crate::client::Connections;
use crate::failure::Failure;
use crate::url::{Url, escape, unescape};
use omni_weights::MOST_FILES;
use quick_xml::Reader;
use quick_xml::events::Event;

/// Region where none is named.
pub(super) const REGION: &str = "us-east-1";

/// Pages of a list: of a thousand objects each, most of which may be of folders or other keys.
const PAGES: usize = 256;
/// Bytes of a page: a thousand keys of a kilobyte each, escaped, and what belongs to them.
const MOST_PAGE: usize = 8 << 20;
/// Depth of the elements of a page. A list has four: its owners' names.
const DEPTH: usize = 8;

/// Amazon's own store. A bucket with a dot in its name has no certificate of its own.
pub(super) fn public_endpoint(bucket: &str, region: &str) -> String {
    if bucket.contains('.') {
        format!("https://s3.{region}.amazonaws.com")
    } else {
        format!("https://{bucket}.s3.{region}.amazonaws.com")
    }
}

pub(super) async fn files(
    listing: &Listing<'_>,
    connections: &mut Connections,
    bucket: &str,
    key: &str,
) -> Result<Vec<RemoteFile>, Failure> {
    let is_in_host = listing.order.endpoint.is_none() && !bucket.contains('.');
    let root = if is_in_host { String::new() } else { format!("/{bucket}") };
    let place = |key: &str| format!("{root}/{}", escape(key, true));
    if !listing.order.files.is_empty() {
        let folder = if key.is_empty() { root.clone() } else { place(key) };
        return listing.listed_below(connections, &folder).await;
    }
    let mut files = Vec::new();
    let mut token: Option<String> = None;
    for _ in 0..PAGES {
        let page = page(connections, &listing.url(list_path(&root, key, token.as_deref()))).await?;
        for object in page.objects {
            let Some(path) = below(&object.key, key) else { continue };
            let url = listing.url(place(&object.key));
            files.push(RemoteFile { path, url, size: object.size, sha256: None, etag: object.etag });
        }
        token = page.next;
        if token.is_none() || files.len() > MOST_FILES {
            return Ok(files);
        }
    }
    Err(super::too_long(listing.order, &format!("{PAGES} pages of objects that begin as it does")))
}

/// Path of an object below the folder of weights: its name for the object that the key is, and what follows for others.
/// `None` for one that only begins alike, and for one that stands for a folder.
fn below(object: &str, key: &str) -> Option<String> {
    if object == key {
        return object.rsplit('/').next().filter(|name| !name.is_empty()).map(str::to_owned);
    }
    let path = if key.is_empty() { object } else { object.strip_prefix(key)?.strip_prefix('/')? };
    (!path.is_empty() && !path.ends_with('/')).then(|| path.to_owned())
}

fn list_path(root: &str, key: &str, token: Option<&str>) -> String {
    let token = token.map(|token| format!("continuation-token={}&", escape(token, false))).unwrap_or_default();
    format!("{root}/?{token}encoding-type=url&list-type=2&prefix={}", escape(key, false))
}

/// A page of a list.
#[derive(Debug, Default, PartialEq, Eq)]
struct Page {
    objects: Vec<Object>,
    next: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Object {
    key: String,
    size: u64,
    etag: Option<String>,
}

async fn page(connections: &mut Connections, url: &Url) -> Result<Page, Failure> {
    let (body, _) = connections.text(url, MOST_PAGE).await?;
    let text = std::str::from_utf8(&body).ok();
    text.and_then(parse).ok_or_else(|| Failure::odd(url, "no list of objects"))
}

/// Reads `ListBucketResult`. Each element costs as much as its depth, which has a bound.
fn parse(text: &str) -> Option<Page> {
    let mut reader = Reader::from_str(text);
    let (mut page, mut object, mut path, mut value) = (Page::default(), Object::default(), Vec::new(), String::new());
    let (mut is_truncated, mut is_list) = (false, false);
    loop {
        match reader.read_event().ok()? {
            Event::Start(_) if path.len() == DEPTH => return None,
            Event::Start(start) => {
                path.push(start.local_name().as_ref().to_owned());
                value.clear();
            }
            Event::Text(piece) => value.push_str(&piece),
            Event::GeneralRef(reference) => value.push(match reference.resolve_char_ref().ok()? {
                Some(character) => character,
                None => match &*reference {
                    "quot" => '"',
                    "amp" => '&',
                    "lt" => '<',
                    "gt" => '>',
                    "apos" => '\'',
                    _ => return None,
                },
            }),
            Event::End(_) => {
                let names: Vec<&str> = path.iter().map(String::as_str).collect();
                match names.as_slice() {
                    ["ListBucketResult"] => is_list = true,
                    ["ListBucketResult", "Contents"] => page.objects.push(std::mem::take(&mut object)),
                    ["ListBucketResult", "Contents", "Key"] => object.key = unescape(&value)?,
                    ["ListBucketResult", "Contents", "Size"] => object.size = value.trim().parse().ok()?,
                    ["ListBucketResult", "Contents", "ETag"] => object.etag = Some(quoted(value.trim())),
                    ["ListBucketResult", "IsTruncated"] => is_truncated = value.trim() == "true",
                    ["ListBucketResult", "NextContinuationToken"] => page.next = Some(value.clone()),
                    _ => {}
                }
                path.pop();
                value.clear();
            }
            Event::Eof => break,
            Event::Empty(_)
            | Event::CData(_)
            | Event::Comment(_)
            | Event::Decl(_)
            | Event::PI(_)
            | Event::DocType(_) => {}
        }
    }
    if !is_truncated {
        page.next = None;
    }
    is_list.then_some(page)
}

/// An entity tag as the fields of requests have it; some stores list it without its quotes.
fn quoted(etag: &str) -> String {
    let is_quoted = etag.starts_with("W/\"") || etag.starts_with('"');
    if is_quoted { etag.to_owned() } else { format!("\"{etag}\"") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_objects_are_read() {
        let text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/\">\
            <Name>b</Name><Prefix>m</Prefix><IsTruncated>true</IsTruncated>\
            <Contents><Key>m/a%20b%2Bc</Key><ETag>&quot;abc-2&quot;</ETag><Size>7</Size><Owner><ID>x</ID></Owner></Contents>\
            <Contents><Size>0</Size><Key>m/</Key><ETag>d</ETag></Contents>\
            <NextContinuationToken>t&amp;u=</NextContinuationToken></ListBucketResult>";
        let page = parse(text).unwrap();
        let first = Object { key: "m/a b+c".to_owned(), size: 7, etag: Some("\"abc-2\"".to_owned()) };
        assert_eq!((page.objects.first(), page.objects.len()), (Some(&first), 2));
        assert_eq!(page.objects[1].etag.as_deref(), Some("\"d\""), "rclone lists them without quotes");
        assert_eq!(page.next.as_deref(), Some("t&u="));
        for (depth, is_list) in [(DEPTH, true), (DEPTH + 1, false), (10_000, false)] {
            let inner = depth - 1;
            let nested =
                format!("<ListBucketResult>{}{}</ListBucketResult>", "<a>".repeat(inner), "</a>".repeat(inner));
            assert_eq!(parse(&nested).is_some(), is_list, "{depth}");
        }
        for bad in ["", "<Error><Code>NoSuchBucket</Code></Error>", "<ListBucketResult><Contents>", "{}"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_key_is_an_object_or_a_folder() {
        let table = [
            ("m/w.bin", "m/w.bin", Some("w.bin")),
            ("m/w.bin2", "m/w.bin", None),
            ("m/a/b", "m", Some("a/b")),
            ("m2/a", "m", None),
            ("m/", "m", None),
            ("m/sub/", "m", None),
            ("a/b", "", Some("a/b")),
        ];
        for (object, key, path) in table {
            assert_eq!(below(object, key).as_deref(), path, "{object} {key}");
        }
    }

    #[test]
    fn lists_are_asked_for_with_sorted_parameters() {
        assert_eq!(list_path("/b", "m/x y", None), "/b/?encoding-type=url&list-type=2&prefix=m%2Fx%20y");
        let next = list_path("", "m", Some("a+="));
        assert_eq!(next, "/?continuation-token=a%2B%3D&encoding-type=url&list-type=2&prefix=m");
        assert_eq!(public_endpoint("b.c", "eu-1"), "https://s3.eu-1.amazonaws.com");
        assert_eq!(public_endpoint("bc", "eu-1"), "https://bc.s3.eu-1.amazonaws.com");
    }
}
