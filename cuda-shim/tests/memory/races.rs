//! Threads and processes that race to the limit: never a byte over it, and all of it can be had.

use crate::calls::cuCtxSetCurrent;
use crate::client::{allocate, begin, free};
use crate::instance::{DRIVERS, Instance, MIB, MODES, say, wait};
use std::thread;

const PROCESSES: usize = 4;
const THREADS: u64 = 8;
const STEPS: u64 = 150;
/// Limit that is no multiple of any allocation.
const LIMIT: u64 = 50 * MIB + 12_345;

#[test]
fn racing_processes_never_exceed_the_limit_and_can_use_all_of_it() {
    for mode in MODES {
        let instance = Instance::new(DRIVERS[0], mode, LIMIT);
        let mut clients: Vec<_> = (0..PROCESSES).map(|_| instance.start("race")).collect();
        clients.iter_mut().for_each(|client| client.expect("ready"));
        clients.iter_mut().for_each(|client| client.go_on());
        let (mut samples, mut highest) = (0, 0);
        thread::scope(|scope| {
            let racing = scope.spawn(|| {
                clients.iter_mut().map(|client| client.line().expect("what came of it")).collect::<Vec<String>>()
            });
            while !racing.is_finished() {
                let (account, card) = (instance.used(), instance.card());
                assert!(account.limited() <= LIMIT, "the account is {} over", account.limited() - LIMIT);
                assert!(card.used() <= LIMIT, "the card is {} over", card.used() - LIMIT);
                highest = highest.max(account.limited());
                samples += 1;
            }
            let said = racing.join().unwrap();
            assert!(said.iter().all(|said| said == "refused and allowed"), "{said:?}");
        });
        assert!(samples > 10, "looked at {samples} times");
        assert_eq!(instance.used().limited(), 0, "after the race");
        // In turns they fill it to the last byte.
        clients[0].go_on();
        clients[0].expect(&format!("filled {LIMIT}"));
        assert_eq!(instance.used().limited(), LIMIT);
        for client in &mut clients[1..] {
            client.go_on();
            client.expect("filled 0");
        }
        drop(clients);
        instance.expect_nothing();
    }
}

/// Allocates and frees sizes of its own in every thread, and holds nothing at the end.
pub(crate) fn client() {
    let context = begin();
    say("ready");
    wait();
    let (mut refused, mut allowed) = (0, 0);
    thread::scope(|scope| {
        let racers: Vec<_> = (0..THREADS)
            .map(|number| {
                scope.spawn(move || {
                    assert_eq!(cuCtxSetCurrent(context), 0);
                    race(number + u64::from(std::process::id()) * THREADS)
                })
            })
            .collect();
        for racer in racers {
            let (no, yes) = racer.join().unwrap();
            refused += no;
            allowed += yes;
        }
    });
    say(if refused > 0 && allowed > 0 { "refused and allowed" } else { "not a race" });
    wait();
    let mut filled = 0;
    for step in [MIB, 4096, 1] {
        while allocate(step).is_ok() {
            filled += step;
        }
    }
    say(&format!("filled {filled}"));
    wait();
}

fn race(seed: u64) -> (u64, u64) {
    let mut random = Random(seed);
    let (mut held, mut refused, mut allowed) = (Vec::new(), 0, 0);
    for _ in 0..STEPS {
        match allocate(1 + random.below(20 * MIB)) {
            Ok(address) => {
                held.push(address);
                allowed += 1;
            }
            Err(error) => {
                assert_eq!(error, 2);
                refused += 1;
                held.drain(..held.len() / 2).for_each(free);
            }
        }
        if held.len() > 3 {
            free(held.swap_remove(usize::try_from(random.below(4)).unwrap()));
        }
    }
    held.into_iter().for_each(free);
    (refused, allowed)
}

/// Pseudo-random numbers: xorshift.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        self.0 ^= self.0 >> 29;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}
