//! How long, how often and by which chance: waiting for something that the kernel cannot wake a test for, and rounds of
//! a property.

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
    if is_soak() { full } else { (full / 20).max(1) }
}

/// Returns true under `make soak`.
#[must_use]
pub fn is_soak() -> bool {
    env::var_os("OMNI_SOAK").is_some_and(|value| value == "1")
}

/// Chance that can be had again: its seed is in the test's output, and is taken from `PROPTEST_RNG_SEED` when that is
/// set, as `make soak` does.
#[must_use]
pub fn chance() -> fastrand::Rng {
    let given = env::var("PROPTEST_RNG_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("PROPTEST_RNG_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

/// Sets a flag when it goes, so that the threads of a scope end with the test, also with one that fails.
#[derive(Debug)]
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
