//! The library that is measured, and how: built here and now as `make build` builds it, in time of the thread.
//!
//! Cargo builds a `cdylib` for nobody, so a benchmark that took the file it finds could measure an older shim.

use nix::time::{ClockId, clock_gettime};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Rounds with and without the shim, which take turns.
pub(crate) const ROUNDS: usize = 15;

/// Builds the library and says where it is.
pub(crate) fn build() -> PathBuf {
    let mut cargo = Command::new(std::env::var_os("CARGO").expect("run by cargo bench"));
    cargo.args(["rustc", "--release", "--locked", "-p", "omni-cuda", "--lib", "--", "-C", "panic=abort"]);
    assert!(cargo.status().unwrap().success(), "the shim does not build");
    // The benchmark is target/release/deps/NAME.
    let library = std::env::current_exe().unwrap().parent().unwrap().with_file_name("libomni_cuda.so");
    assert!(library.exists(), "{} is not there", library.display());
    library
}

/// What this thread has computed, without what others took of the processor.
pub(crate) fn thread_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

/// Of an odd number of rounds.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
