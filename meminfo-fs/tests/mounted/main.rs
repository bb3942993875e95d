//! Files really mounted over `/proc/meminfo` in mount namespaces of the tests' own. Needs root and `/dev/fuse`.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test")]

mod ending;
mod reading;
mod support;
