//! Journal of a file that is being fetched: which ranges are on the disk, bound to the file's size and validator.
//!
//! A line each, appended after the range was written. It holds for one boot of the machine: a killed downloader leaves what it
//! wrote with the kernel, a power failure does not, and nothing here waits for the disk.

use omni_weights::Digest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// First line: what the ranges are of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) boot: String,
    pub(crate) path: String,
    pub(crate) size: u64,
    pub(crate) range: u64,
    pub(crate) sha256: Option<Digest>,
    /// Validator of the list of files.
    pub(crate) etag: Option<String>,
}

/// Content of a journal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Resumed {
    pub(crate) ranges: BTreeSet<u64>,
    /// Validator that the server gave with the content.
    pub(crate) etag: Option<String>,
}

/// Line for a range that is on the disk.
pub(crate) fn range_line(number: u64) -> String {
    format!("range {number}\n")
}

/// Line for the validator of the content.
pub(crate) fn etag_line(etag: &str) -> String {
    let mut line = String::from("etag ");
    // As JSON it has no line end in it.
    let _ = write!(line, "{}", serde_json::Value::from(etag)); // a String takes everything
    line.push('\n');
    line
}

/// Reads a journal; `None` if it is of another file, or of one that nothing tells from its successor. A line that was not
/// written to its end is left out.
pub(crate) fn read(text: &str, expected: &Header) -> Option<Resumed> {
    let complete = text.rfind('\n').and_then(|end| text.get(..end)).unwrap_or_default();
    let mut lines = complete.lines();
    let header: Header = serde_json::from_str(lines.next()?).ok()?;
    if header != *expected {
        return None;
    }
    let mut resumed = Resumed::default();
    for line in lines {
        if let Some(number) = line.strip_prefix("range ") {
            resumed.ranges.insert(number.parse().ok()?);
        } else {
            resumed.etag = Some(serde_json::from_str(line.strip_prefix("etag ")?).ok()?);
        }
    }
    let is_bound = expected.sha256.is_some() || expected.etag.is_some() || resumed.etag.is_some();
    is_bound.then_some(resumed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(etag: Option<&str>, size: u64) -> Header {
        let etag = etag.map(str::to_owned);
        Header { boot: "b".to_owned(), path: "w".to_owned(), size, range: 16, sha256: None, etag }
    }

    fn text(header: &Header, rest: &str) -> String {
        format!("{}\n{rest}", serde_json::to_string(header).unwrap())
    }

    #[test]
    fn a_journal_resumes_its_own_file_only() {
        let own = header(Some("\"a\""), 100);
        let ranges = |numbers: &[u64]| Some(numbers.iter().copied().collect::<BTreeSet<_>>());
        let lines = format!("{}{}", range_line(0), range_line(3));
        let read_ranges = |text: &str, header: &Header| read(text, header).map(|resumed| resumed.ranges);
        assert_eq!(read_ranges(&text(&own, &lines), &own), ranges(&[0, 3]));
        assert_eq!(read_ranges(&text(&own, "range 0\nrange 1"), &own), ranges(&[0]));
        assert_eq!(read_ranges(&text(&own, ""), &own), ranges(&[]));
        for other in [
            header(Some("\"b\""), 100),
            header(None, 100),
            header(Some("\"a\""), 101),
            Header { boot: "later".to_owned(), ..own.clone() },
            Header { path: "x".to_owned(), ..own.clone() },
        ] {
            assert_eq!(read(&text(&own, &lines), &other), None, "{other:?}");
        }
        for bad in ["", "{}", "no json\nrange 0\n"] {
            assert_eq!(read(bad, &own), None, "{bad}");
        }
        assert_eq!(read(&text(&own, "range x\n"), &own), None);
    }

    #[test]
    fn what_nothing_tells_from_its_successor_is_not_resumed() {
        let unbound = header(None, 100);
        assert_eq!(read(&text(&unbound, "range 0\n"), &unbound), None);
        let learned = format!("{}{}", etag_line("\"x\ny\""), range_line(0));
        assert_eq!(read(&text(&unbound, &learned), &unbound).unwrap().etag.as_deref(), Some("\"x\ny\""));
    }

    proptest! {
        #[test]
        fn no_text_panics(any in ".{0,64}", tail in "(range [0-9x]{0,4}\n|etag .{0,4}\n){0,4}") {
            let own = header(Some("e"), 1);
            read(&any, &own);
            read(&text(&own, &tail), &own);
        }
    }
}
