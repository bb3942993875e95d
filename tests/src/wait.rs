//! Waiting for something that the kernel cannot wake a test for: looked at again and again, until a deadline.

use std::thread;
use std::time::{Duration, Instant};

/// Long enough for everything that a loaded test machine does; reached only by what never comes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Returns what `look` finds.
///
/// # Panics
/// When it has found nothing after `limit`; `what` says what was awaited.
pub fn wait_for<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "waited {limit:?} for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
