//! Parts that both benchmarks share: the measured library, and the measurement of a call's cost.
//!
//! The library is built here and now, as `make build` builds it: no target depends on a `cdylib`, so a benchmark that
//! took the file it finds could measure an older shim. A sample of criterion's is two new processes, one without the
//! shim and one with it: other load of the machine meets both. Each prints the time of one call, in CPU time of its
//! thread. The sample is the difference.

use criterion::Criterion;
use nix::time::{ClockId, clock_gettime};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Calls between two readings of the clock.
pub(crate) const BATCH: usize = 100;

/// Environment variable with the number of batches of [`BATCH`] calls to measure.
const BATCHES: &str = "OMNI_BENCH_BATCHES";

/// Configuration from the command line, without plots.
pub(crate) fn criterion() -> Criterion {
    let criterion = Criterion::default().sample_size(40).warm_up_time(Duration::from_secs(1));
    criterion.without_plots().configure_from_args()
}

/// Builds the library and returns its path.
pub(crate) fn build() -> PathBuf {
    let mut cargo = Command::new(std::env::var_os("CARGO").expect("run by cargo bench"));
    cargo.args(["rustc", "--release", "--locked", "-p", "omni-cuda", "--lib", "--", "-C", "panic=abort"]);
    assert!(cargo.status().unwrap().success(), "the shim does not build");
    // The benchmark is target/release/deps/NAME.
    let library = std::env::current_exe().unwrap().parent().unwrap().with_file_name("libomni_cuda.so");
    assert!(library.exists(), "{} is not there", library.display());
    library
}

/// Cost that the shim adds to so many calls of a client.
pub(crate) fn added(calls: u64, without: Command, with: Command) -> Duration {
    let [without, with] = [without, with].map(|mut client| {
        let output = client.env(BATCHES, calls.div_ceil(BATCH as u64).to_string()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().parse::<f64>().unwrap()
    });
    Duration::from_secs_f64((with - without).max(0.0) * 1e-9 * calls as f64)
}

/// Prints the time of one call, in a client. `batch` makes [`BATCH`] calls and returns their time. The median: caches
/// are cold after another process had the processor, which is no cost of the shim.
pub(crate) fn report(mut batch: impl FnMut() -> Duration) {
    let batches: usize = std::env::var(BATCHES).unwrap().parse().unwrap();
    let mut times: Vec<Duration> = (0..batches).map(|_| batch()).collect();
    times.sort_unstable();
    println!("{}", times[times.len() / 2].as_secs_f64() * 1e9 / BATCH as f64);
}

/// CPU time of this thread for the work.
pub(crate) fn time(work: impl FnOnce()) -> Duration {
    let now = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
    let begin = now();
    work();
    now() - begin
}
