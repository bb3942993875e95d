//! Storm of requests to the whole program, half of which are cancelled at random points: every block comes back, and its
//! memory stays what it was.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail as tests do")]

mod client;
mod server;
#[path = "../shared/tiny.rs"]
mod tiny;

use client::storm;
use server::{Numbers, Server};
use std::time::{Duration, Instant};

/// Memory that the program may take beyond what it had after the first requests.
const GROWTH: u64 = 8 << 20;

/// Waits until nothing runs, and asserts that every block is back.
fn assert_all_back(server: &Server, total: u64) -> Numbers {
    let since = Instant::now();
    loop {
        let numbers = server.numbers();
        if numbers.is_idle() {
            assert_eq!(numbers.free + numbers.cached, total, "{numbers:?}");
            return numbers;
        }
        assert!(since.elapsed() < Duration::from_secs(30), "{numbers:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn behaviours_20_and_21_all_blocks_come_back_from_10000_requests_half_of_which_are_cancelled() {
    let server = Server::start();
    let total = server.numbers().free;
    // The threads that make tokens keep those of some thousand words, which here are whole texts.
    let (warm, _) = storm(&server, 1, 6_000);
    let before = assert_all_back(&server, total);
    let (ended, cancelled) = storm(&server, 2, 4_000);
    let after = assert_all_back(&server, total);
    println!("{ended} requests answered after {warm}, {cancelled} cancelled: {before:?}, then {after:?}");
    assert!(ended > 1_700 && cancelled > 1_700, "{ended} {cancelled}");
    assert!(after.resident < before.resident + GROWTH, "{before:?}, then {after:?}");
    assert!(after.drafted > before.drafted, "{after:?}");
}

#[test]
#[ignore = "takes as many minutes as OMNI_SOAK_MINUTES says"]
fn soak() {
    let minutes: u64 = std::env::var("OMNI_SOAK_MINUTES").expect("OMNI_SOAK_MINUTES").parse().unwrap();
    let server = Server::start();
    let total = server.numbers().free;
    let (mut all, mut cancelled, mut first, begun) = (0, 0, None, Instant::now());
    for minute in 1..=minutes {
        let mut seed = minute << 32;
        while begun.elapsed() < Duration::from_secs(60 * minute) {
            seed += 1;
            let (ended, dropped) = storm(&server, seed, 1_000);
            all += ended + dropped;
            cancelled += dropped;
        }
        let numbers = assert_all_back(&server, total);
        println!("minute {minute}: {all} requests, {cancelled} cancelled, {numbers:?}");
        let first = first.get_or_insert(numbers.resident);
        assert!(numbers.resident < *first + GROWTH, "{numbers:?}");
    }
}
