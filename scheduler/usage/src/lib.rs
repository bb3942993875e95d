//! Usage records: one for each attempt at a request, kept on disk and handed over to a sink.
//!
//! | module | content |
//! | --- | --- |
//! | [`record`] | the record of an attempt |
//! | `line` | its line of JSON |
//! | `segment` | files of records that are mapped into memory |
//! | `spool` | records in memory, which survive the process |
//! | `log` | records on the disk, in files that are ended by their size |
//! | `cursor` | how far a sink has taken each file |
//! | [`recorder`] | takes records, and moves them from the spool to the log |
//! | `sink` | hands the records of the log over, at least once each |
//! | [`read`](mod@read) | records since a time |

mod cursor;
mod line;
mod log;
mod read;
mod record;
mod recorder;
mod segment;
mod sink;
mod spool;

pub use read::read_since;
pub use record::{Outcome, TokenSource, Tokens, Units, UsageRecord};
pub use recorder::{FLUSH_AFTER, UsageCounts, UsageRecorder, UsageSettings, WhenFull};
pub use sink::{HttpSink, UsageSink};
