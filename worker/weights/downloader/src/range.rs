//! Ranges of a file, requests for them, and what a response to one means. Pure.

use std::collections::VecDeque;
use std::ops::Range;

/// Size of a range: what the journal and the digest count in.
pub(crate) const RANGE: u64 = 8 << 20;

/// Ranges of a request, at most: so many that the way to a far server costs little.
const MOST: usize = 4;

/// Number of ranges of a file.
pub(crate) fn count(size: u64) -> u64 {
    size.div_ceil(RANGE)
}

/// Bytes of a range.
pub(crate) fn bytes(size: u64, number: u64) -> Range<u64> {
    let start = number.saturating_mul(RANGE).min(size);
    start..start.saturating_add(RANGE).min(size)
}

/// Number of ranges that are complete when the file is there up to `end`.
pub(crate) fn complete(size: u64, end: u64) -> u64 {
    if end >= size { count(size) } else { end / RANGE }
}

/// Takes the ranges of the next request off the list of those that are missing, which are of a part and a number each.
/// Requests get smaller towards the end of the list, so that all connections are busy to the end, and the digest, which
/// needs the ranges in their order, is complete shortly after the last one.
pub(crate) fn request(missing: &mut VecDeque<(usize, u64)>, connections: usize) -> Option<(usize, Range<u64>)> {
    let most = (missing.len() / (2 * connections.max(1))).clamp(1, MOST) as u64;
    let (part, first) = missing.pop_front()?;
    let mut end = first + 1;
    while end - first < most && missing.front() == Some(&(part, end)) {
        missing.pop_front();
        end += 1;
    }
    Some((part, first..end))
}

/// Head of a response, as far as it matters here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) content_range: Option<String>,
    pub(crate) content_length: Option<u64>,
    pub(crate) etag: Option<String>,
    pub(crate) is_encoded: bool,
}

/// Range that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked<'a> {
    /// Bytes of the file; all of it for a request without a range.
    pub(crate) bytes: Range<u64>,
    /// Size of the file.
    pub(crate) size: u64,
    /// Validator of what is on the disk of it.
    pub(crate) etag: Option<&'a str>,
}

/// Meaning of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The body is what was asked for.
    Take,
    /// The server sends the whole file whatever range is asked for.
    Whole,
    /// The file is another one by now.
    Changed,
    /// The server does not let this node have it.
    Forbidden,
    /// There is no such file.
    Missing,
    /// The server may answer later.
    Later,
    /// The response makes no sense.
    Odd,
}

/// Decides what a response means. Servers differ: one that answers a range with status 200 and the field
/// `Content-Range` sends the range (rclone does), one without that field sends all.
pub(crate) fn judge(asked: &Asked<'_>, head: &Head) -> Verdict {
    match head.status {
        200 | 206 => {}
        401 | 403 => return Verdict::Forbidden,
        404 | 410 => return Verdict::Missing,
        412 | 416 => return Verdict::Changed,
        408 | 425 | 429 | 500.. => return Verdict::Later,
        _ => return Verdict::Odd,
    }
    if head.is_encoded {
        return Verdict::Odd;
    }
    let is_other = |known: &str| head.etag.as_deref().is_some_and(|etag| strong(etag) != strong(known));
    if asked.etag.is_some_and(is_other) {
        return Verdict::Changed;
    }
    let length = asked.bytes.end - asked.bytes.start;
    match head.content_range.as_deref().map(content_range) {
        Some(Some((bytes, size))) => {
            if size.is_some_and(|size| size != asked.size) {
                return Verdict::Changed;
            }
            let is_right = bytes == asked.bytes && head.content_length.is_none_or(|stated| stated == length);
            if is_right { Verdict::Take } else { Verdict::Odd }
        }
        Some(None) => Verdict::Odd,
        None if head.status == 206 => Verdict::Odd,
        None if head.content_length.is_some_and(|stated| stated != asked.size) => Verdict::Changed,
        None if length == asked.size => Verdict::Take,
        None => Verdict::Whole,
    }
}

/// Reads `Content-Range`: bytes, and the size of the whole where it is known.
pub(crate) fn content_range(text: &str) -> Option<(Range<u64>, Option<u64>)> {
    let (range, size) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    let size = if size == "*" { None } else { Some(size.parse().ok()?) };
    (first <= last).then(|| Some((first..last.checked_add(1)?, size)))?
}

/// The validator itself. A weak one tells equal enough contents apart, which changed weights are not.
fn strong(etag: &str) -> &str {
    etag.strip_prefix("W/").unwrap_or(etag)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_cover_a_file_once() {
        for size in [0, 1, RANGE - 1, RANGE, RANGE + 1, 5 * RANGE + 7] {
            let ranges: Vec<_> = (0..count(size)).map(|number| bytes(size, number)).collect();
            let mut end = 0;
            for range in &ranges {
                assert!(range.start == end && range.end > end, "{size}: {ranges:?}");
                end = range.end;
            }
            assert_eq!(end, size);
            for at in [0, 1, RANGE - 1, RANGE, RANGE + 1, size.saturating_sub(1), size] {
                let fully = ranges.iter().filter(|range| range.end <= at).count() as u64;
                assert_eq!(complete(size, at), fully, "{at} of {size}");
            }
        }
        assert!(bytes(10, u64::MAX).is_empty());
    }

    proptest! {
        #[test]
        fn requests_have_all_that_is_missing_once(
            parts in prop::collection::vec(prop::collection::btree_set(0_u64..200, 0..150), 0..4),
            connections in 0_usize..9,
        ) {
            let of_part = |(part, numbers): (usize, &std::collections::BTreeSet<u64>)| {
                numbers.iter().map(move |number| (part, *number)).collect::<Vec<_>>()
            };
            let all: Vec<_> = parts.iter().enumerate().flat_map(of_part).collect();
            let mut missing: VecDeque<_> = all.iter().copied().collect();
            let mut taken = Vec::new();
            loop {
                let left = missing.len();
                let Some((part, numbers)) = request(&mut missing, connections) else { break };
                let length = numbers.end - numbers.start;
                prop_assert!((1..=MOST as u64).contains(&length));
                prop_assert!(left >= 2 * connections.max(1) * 2 || length == 1, "{left} were left, {length} are asked for");
                taken.extend(numbers.map(|number| (part, number)));
            }
            prop_assert_eq!(taken, all);
        }
    }

    fn head(status: u16, content_range: Option<&str>, content_length: Option<u64>, etag: Option<&str>) -> Head {
        let (content_range, etag) = (content_range.map(str::to_owned), etag.map(str::to_owned));
        Head { status, content_range, content_length, etag, is_encoded: false }
    }

    #[test]
    fn responses_to_a_range() {
        use Verdict::{Changed, Forbidden, Later, Missing, Odd, Take, Whole};
        let asked = Asked { bytes: 10..20, size: 100, etag: Some("\"a\"") };
        let right = Some("bytes 10-19/100");
        let table = [
            (head(206, right, Some(10), Some("\"a\"")), Take),
            (head(206, right, None, None), Take),
            (head(206, Some("bytes 10-19/*"), Some(10), None), Take),
            (head(200, right, Some(10), Some("\"a\"")), Take), // rclone
            (head(200, None, Some(100), None), Whole),
            (head(200, None, None, None), Whole),
            (head(200, None, Some(10), None), Changed),
            (head(206, right, Some(10), Some("\"b\"")), Changed),
            (head(200, None, Some(100), Some("\"b\"")), Changed),
            (head(206, Some("bytes 10-19/101"), Some(10), None), Changed),
            (head(412, None, None, None), Changed),
            (head(416, None, None, None), Changed),
            (head(206, None, Some(10), None), Odd),
            (head(206, Some("bytes 0-9/100"), Some(10), None), Odd),
            (head(206, Some("bytes 10-29/100"), Some(20), None), Odd),
            (head(206, right, Some(11), None), Odd),
            (head(206, Some("items 1"), Some(10), None), Odd),
            (Head { is_encoded: true, ..head(206, right, Some(10), None) }, Odd),
            (head(304, None, None, None), Odd),
            (head(400, None, None, None), Odd),
            (head(401, None, None, None), Forbidden),
            (head(403, None, None, None), Forbidden),
            (head(404, None, None, None), Missing),
            (head(429, None, None, None), Later),
            (head(503, None, None, None), Later),
        ];
        for (head, verdict) in table {
            assert_eq!(judge(&asked, &head), verdict, "{head:?}");
        }
        let whole = Asked { bytes: 0..100, size: 100, etag: Some("W/\"a\"") };
        assert_eq!(judge(&whole, &head(200, None, Some(100), Some("\"a\""))), Take);
        assert_eq!(judge(&whole, &head(200, None, Some(99), None)), Changed);
    }

    #[test]
    fn content_ranges_that_make_no_sense() {
        for bad in
            ["", "bytes", "bytes */100", "bytes 5-4/10", "bytes -1-4/10", "bytes 0-18446744073709551615/1", "bytes 0-1"]
        {
            assert_eq!(content_range(bad), None, "{bad}");
        }
        assert_eq!(content_range("bytes 0-0/1"), Some((0..1, Some(1))));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(bytes )?[0-9*/ -]{0,24}") {
            content_range(&text);
        }
    }
}
