//! Power failures: the store works on a file system that records every write, flush and rename. The record is replayed
//! up to any point, with what was not flushed by then lost, kept or torn; and the store is opened on what is left.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed step of a test is a failed test")]

mod filesystem;
mod survivor;
mod trace;
mod workload;

use std::env;
use trace::{Fate, Replay};

/// Points that are tried without a soak, which tries all.
const SAMPLE: usize = 60;

#[test]
fn no_acknowledged_result_is_lost_with_the_power() {
    let is_soak = env::var_os("OMNI_SOAK").is_some_and(|value| value == "1");
    let trace = workload::record(if is_soak { 400 } else { 60 });
    let ops = trace.ops();
    // Between two flushes and renames only more or less is unflushed: each of them is tried before and after.
    let points: Vec<usize> = (0..=ops.len())
        .filter(|at| {
            *at == ops.len() || ops[*at].is_ordering() || at.checked_sub(1).is_some_and(|at| ops[at].is_ordering())
        })
        .collect();
    let chosen = |point: &usize| is_soak || fastrand::usize(..points.len()) < SAMPLE || *point == ops.len();
    let seed = env::var("OMNI_TEST_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("seed {seed}: {} operations, {} points", ops.len(), points.len());
    fastrand::seed(seed);

    let mut replay = Replay::default();
    let (mut at, mut tried) = (0, 0);
    for point in &points {
        while at < *point {
            replay.apply(&ops[at]);
            at += 1;
        }
        if !chosen(point) {
            continue;
        }
        for fate in [Fate::Lost, Fate::Kept, Fate::Torn, Fate::Torn] {
            let left = survivor::folder();
            replay.write_to(left.path(), fate);
            survivor::check(left.path(), &replay.promises, &format!("seed {seed}, point {point}, {fate:?}"));
            tried += 1;
        }
    }
    println!("{tried} states after a power failure, all with every acknowledged result");
}
