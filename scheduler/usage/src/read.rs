//! Records of a log, for operators.

use crate::log::{records_in, unix_ms_of};
use crate::record::UsageRecord;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::Path;

/// Passes every record that ended at this time or later to `on_record`, file by file. Lines that are no records are
/// passed over: one bad line costs itself. Records that a process left behind when it was killed may come twice.
///
/// # Errors
/// A file cannot be read.
pub fn read_since(dir: &Path, unix_ms: u64, mut on_record: impl FnMut(UsageRecord<'_>)) -> io::Result<()> {
    for path in records_in(dir)? {
        let found = match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue, // removed for room
            found => found?,
        };
        // A file was last written after its last record ended.
        if unix_ms_of(found.modified()?) < unix_ms {
            continue;
        }
        for line in BufReader::new(File::open(&path)?).split(b'\n') {
            if let Ok(record) = serde_json::from_slice::<UsageRecord<'_>>(&line?)
                && record.ended_unix_ms >= unix_ms
            {
                on_record(record);
            }
        }
    }
    Ok(())
}
