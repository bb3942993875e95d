//! Waiting for modelled time.

use omni_cuda_card::now;
use std::time::Duration;

/// Sleeps until the monotonic clock shows `end`, in nanoseconds.
pub(crate) fn wait(end: u64) {
    while let Some(left) = end.checked_sub(now()).filter(|left| *left > 0) {
        std::thread::sleep(Duration::from_nanos(left));
    }
}
