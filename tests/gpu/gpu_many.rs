//! Thirteen models whose GPU memory is four times what the card may hold, asked by eight clients at once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step of a test is a failed test")]

use omni_cuda_card::Settings;
use omni_tests::gpu::{MIB, ask, card, model, swap};
use omni_tests::{Node, SetOnDrop, rounds};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const MODELS: usize = 13;
const CLIENTS: u64 = 8;
/// A fourth of what the models may have together: 13 times 16 MiB.
const BUDGET: u64 = 52;

fn name(number: usize) -> String {
    format!("m{number}")
}

/// Numbers that look random and are the same in every run: SplitMix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A model by Zipf's law: the n-th is asked for 1/n as often as the first.
fn zipf(state: &mut u64) -> usize {
    let weight = |rank: usize| 1.0 / (rank + 1) as f64;
    let mut at = (random(state) >> 11) as f64 / (1_u64 << 53) as f64 * (0..MODELS).map(weight).sum::<f64>();
    for rank in 0..MODELS {
        at -= weight(rank);
        if at < 0.0 {
            return rank;
        }
    }
    MODELS - 1
}

/// Every request is answered, with data that is whole; and at no moment is there more on the card than may be.
fn serve(card: &Settings) {
    let config = format!("memory-budget = \"{BUDGET}MiB\"\novercommit = 4.0\nquantum = \"50ms\"");
    let node = Node::builder().gpus(std::slice::from_ref(card), &config).start();
    (0..MODELS).for_each(|number| model(&name(number), 12).limit(16).publish(&node));
    let requests = rounds(8_000);
    let (stop, most, sent) = (AtomicBool::new(false), AtomicU64::new(0), AtomicUsize::new(0));
    let served = Mutex::new(vec![0_usize; MODELS]);
    let waits = Mutex::new(Vec::<(Duration, bool)>::new());
    thread::scope(|scope| {
        let stopping = SetOnDrop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                most.fetch_max(node.cards()[0].state().unwrap().used(), Ordering::Relaxed);
                thread::sleep(Duration::from_micros(500));
            }
        });
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (node, sent, served, waits) = (&node, &sent, &served, &waits);
                scope.spawn(move || {
                    let mut state = client;
                    loop {
                        let number = sent.fetch_add(1, Ordering::Relaxed);
                        if number >= requests {
                            return;
                        }
                        // The first requests go to each model once: none is left out by chance.
                        let model = if number < MODELS { number } else { zipf(&mut state) };
                        let begun = Instant::now();
                        let answer = ask(node, &name(model));
                        waits.lock().unwrap().push((begun.elapsed(), swap(&answer).is_some()));
                        served.lock().unwrap()[model] += 1;
                    }
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().expect("every request is answered"));
        drop(stopping);
    });
    let (served, mut waits) = (served.into_inner().unwrap(), waits.into_inner().unwrap());
    assert_eq!(served.iter().sum::<usize>(), requests);
    assert!(served.iter().all(|count| *count > 0), "{served:?}");
    let most = most.into_inner();
    assert!(most <= BUDGET * MIB, "{most} bytes were on the card");
    assert!(most > BUDGET * MIB / 2, "the card was used: {most}");
    let state = node.cards()[0].state().unwrap();
    let counters = state.counters;
    assert!(counters.prefetch_to_device > 0 && counters.prefetch_to_host > 0, "{counters:?}");
    // No request ran before its memory was there, and the driver had nothing to decide.
    assert_eq!((counters.fault_to_device, counters.evicted), (0, 0), "{counters:?}");
    for number in 0..MODELS {
        let model = node.model(&name(number));
        assert_eq!((model.restarts, model.last_exit), (0, None), "{}", node.log());
    }
    waits.sort_unstable();
    let swapped = waits.iter().filter(|(_, swapped)| *swapped).count();
    println!(
        "{requests} requests, {swapped} waited for memory; median {:?}, p99 {:?}, longest {:?}; {} MiB in, {} MiB out; \
         most on the card {} of {BUDGET} MiB",
        waits[requests / 2].0,
        waits[requests * 99 / 100].0,
        waits[requests - 1].0,
        counters.prefetch_to_device / MIB,
        counters.prefetch_to_host / MIB,
        most / MIB,
    );
    node.stop();
}

#[test]
fn thirteen_models_at_four_times_the_card() {
    serve(&card(512));
}

#[test]
fn thirteen_models_over_a_slow_link() {
    serve(&Settings { to_device: 2 << 30, to_host: 2 << 30, by_fault: 1 << 28, driver: 13000, ..card(512) });
}
