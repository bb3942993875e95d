//! How long and how often: waiting for something that the kernel cannot wake a test for, and rounds of a property.

use std::env;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// How often a property is tried: `full` times with `OMNI_SOAK=1` (`make soak`), a twentieth of that otherwise.
#[must_use]
pub fn rounds(full: usize) -> usize {
    if env::var_os("OMNI_SOAK").is_some_and(|value| value == "1") { full } else { (full / 20).max(1) }
}

/// Sets a flag when it goes, so that the threads of a scope end with the test, also with one that fails.
#[derive(Debug)]
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
