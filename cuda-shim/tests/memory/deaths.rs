//! Processes killed at any point: their memory is no longer counted, and their lock stops no other process.

use crate::calls::*;
use crate::client::begin;
use crate::instance::{DRIVERS, Instance, MIB, MODES, rounds, say};
use crate::races::Random;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const ROUNDS: u64 = 1000;
const LIMIT: u64 = 40 * MIB;

#[test]
fn a_killed_process_counts_for_nothing_and_blocks_no_other() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = std::env::var("OMNI_SEED").map_or(now.as_secs(), |seed| seed.parse().unwrap());
    println!("OMNI_SEED={seed}");
    let mut random = Random(seed);
    let instances = MODES.map(|mode| Instance::new(DRIVERS[0], mode, LIMIT));
    for round in 0..rounds(ROUNDS) {
        let instance = &instances[usize::try_from(round % 2).unwrap()];
        let mut clients: Vec<_> =
            (0..2).map(|_| instance.start(&format!("churn {}", random.below(u64::MAX)))).collect();
        clients.iter_mut().for_each(|client| client.expect("ready"));
        for client in clients {
            thread::sleep(Duration::from_micros(random.below(3000)));
            client.kill();
        }
        instance.expect_nothing();
        let left = instance.slots().iter().fold(0, |sum, slot| sum + slot.managed + slot.device);
        assert!(instance.at_most() >= left, "{left} in the slots, and the bound is {}", instance.at_most());
        assert!(instance.slots().len() <= 2, "slots of the dead are used again: {:?}", instance.slots());
        if round % 10 < 2 {
            let mut whole = instance.start(&format!("hold {LIMIT}"));
            whole.expect("0");
            whole.kill();
        }
    }
}

#[test]
fn a_bound_left_too_high_by_dead_processes_refuses_no_allocation() {
    for mode in MODES {
        let instance = Instance::new(DRIVERS[0], mode, LIMIT);
        let mut first = instance.start(&format!("hold {}", 10 * MIB));
        first.expect("0");
        assert_eq!(instance.at_most(), 10 * MIB);
        for bound in [LIMIT, u64::MAX] {
            instance.set_at_most(bound);
            let mut rest = instance.start(&format!("hold {}", LIMIT - 10 * MIB));
            rest.expect("0");
            assert_eq!(instance.at_most(), LIMIT, "counted anew");
            let mut more = instance.start("hold 1");
            more.expect("2");
            rest.kill();
        }
    }
}

/// Threads that allocate and free by several entries until they are killed.
pub(crate) fn client(seed: u64) {
    let context = begin();
    say("ready");
    thread::scope(|scope| {
        for number in 0..3 {
            scope.spawn(move || {
                assert_eq!(cuCtxSetCurrent(context), 0);
                churn(&mut Random(seed.wrapping_add(number)));
            });
        }
    });
}

fn churn(random: &mut Random) {
    loop {
        let bytes = usize::try_from(1 + random.below(4 * MIB)).unwrap();
        let mut address = 0;
        match random.below(4) {
            0 if cuMemAlloc_v2(&raw mut address, bytes) == 0 => assert_eq!(cuMemFree_v2(address), 0),
            1 if cuMemAllocManaged(&raw mut address, bytes, 1) == 0 => assert_eq!(cuMemFree_v2(address), 0),
            2 if cuMemAllocHost_v2(&raw mut address, bytes) == 0 => assert_eq!(cuMemFreeHost(address), 0),
            3 if cuMemCreate(&raw mut address, 2 << 20, &HandleProperties::DEVICE, 0) == 0 => {
                assert_eq!(cuMemRelease(address), 0);
            }
            _ => {}
        }
    }
}
