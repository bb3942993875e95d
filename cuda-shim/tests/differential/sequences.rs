//! Random sequences of calls, with the shim and without: the same answers, an account that agrees with a model of the
//! sequence, and nothing left at the end. With a tight limit the model predicts which allocation may succeed.

use crate::calls::call;
use crate::instance::{Instance, rounds, say, wait};
use crate::table::until_done;
use crate::world::{MIB, Rules, Sums, World};
use omni_cuda_card::{Card, Settings};
use omni_gpu_protocol::account::{Use, sum};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, thread};

const DRIVERS: [u32; 3] = [12_010, 12_090, 13_050];
const STEPS: u64 = 300;
/// Limit that is no multiple of any size.
pub(crate) const TIGHT: u64 = 24 * MIB + 12_345;

/// Seed from `OMNI_SEED`, of an earlier failure, or from the time.
fn seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let seed = std::env::var("OMNI_SEED").map_or(now * 1000, |seed| seed.parse().unwrap());
    println!("OMNI_SEED={seed}");
    seed
}

fn instance(driver: u32, mode: &'static str, limit: Option<u64>) -> Instance {
    Instance::with(Settings { driver, ..Settings::numbered(0) }, mode, limit)
}

#[test]
fn sequences_are_answered_as_by_the_driver() {
    let first = seed();
    for round in 0..rounds(400) {
        let seed = first + round;
        let driver = DRIVERS[usize::try_from(round % 3).unwrap()];
        let mode = if round % 2 == 0 { "device" } else { "unified" };
        let threads = if round % 5 > 2 { 3 } else { 1 };
        let scenario = format!("sequence {seed} {mode} {driver} {threads}");
        let alone = until_done(&instance(driver, mode, None).bare(), &scenario).0;
        let (shimmed, left) = until_done(&instance(driver, mode, Some(1 << 40)), &scenario);
        if let Some(place) = (0..alone.len().max(shimmed.len())).find(|at| alone.get(*at) != shimmed.get(*at)) {
            let before = alone[place.saturating_sub(30)..place].join("\n");
            panic!("{scenario}\n{before}\nalone: {:?}\nshimmed: {:?}", alone.get(place), shimmed.get(place));
        }
        assert_eq!(left, Use::default(), "{scenario}: {}", alone.join("\n"));
    }
}

#[test]
fn a_tight_limit_allows_what_fits_and_not_a_byte_more() {
    let first = seed();
    for round in 0..rounds(400) {
        let seed = first + round;
        let driver = DRIVERS[usize::try_from(round % 3).unwrap()];
        let mode = if round % 2 == 0 { "device" } else { "unified" };
        let (said, left) = until_done(&instance(driver, mode, Some(TIGHT)), &format!("tight {seed} {mode} {driver} 1"));
        assert_eq!(said.last().map(String::as_str), Some("done"), "seed {seed}, {mode}, {driver}: {said:?}");
        assert_eq!(left, Use::default(), "seed {seed}, {mode}, {driver}");
    }
}

/// Arguments: seed, mode, driver, threads.
pub(crate) fn client(words: &[&str], limit: Option<u64>) {
    let [seed, threads] = [words[0], words[3]].map(|word| word.parse::<u64>().unwrap());
    let rules =
        Rules { unified: words[1] == "unified", driver: words[2].parse().unwrap(), limit, is_alone: threads == 1 };
    assert_eq!(call("cuInit", &[0]), 0);
    let running: Vec<_> =
        (0..threads).map(|thread| thread::spawn(move || sequence(rules, seed + 7919 * thread))).collect();
    for sequence in running {
        let said = sequence.join().unwrap_or_else(|_| std::process::exit(1));
        said.lines().for_each(say);
    }
    say("done");
    wait();
}

fn sequence(rules: Rules, seed: u64) -> String {
    let mut world = World::new(rules, seed);
    for step in 0..STEPS {
        world.step();
        if rules.limit.is_some() {
            within_limit(&world);
        }
        if step % 10 == 9 && rules.is_alone {
            call("cuCtxSynchronize", &[]);
            compare(&world);
        }
    }
    clear(&mut world);
    world.said
}

/// Compares the account of this process, if there is one, with the model.
fn compare(world: &World) {
    let Some(path) = std::env::var_os("OMNI_GPU_ACCOUNT") else { return };
    let Use { managed, device, host, .. } = own(&fs::read(path).unwrap());
    assert_eq!(Sums { managed, device, host }, world.sums(), "account, model; {:?}\n{}", world.rules, world.said);
}

fn own(file: &[u8]) -> Use {
    sum(file, |slot| slot.pid == std::process::id())
}

fn within_limit(world: &World) {
    let account = own(&fs::read(std::env::var_os("OMNI_GPU_ACCOUNT").unwrap()).unwrap());
    let card = Path::new(&std::env::var_os("OMNI_CUDA_SIM").unwrap()).join("nvidia0");
    let card = Card::open(&card).unwrap().state().unwrap();
    assert!(
        account.limited() <= TIGHT && card.used() <= TIGHT,
        "{account:?}, the card {}, {:?}\n{}",
        card.used(),
        world.rules,
        world.said
    );
}

/// Frees everything, in every way there is.
fn clear(world: &mut World) {
    for (place, bytes, _) in std::mem::take(&mut world.mappings) {
        let result = call("cuMemUnmap", &[place, bytes]);
        world.say("cuMemUnmap", result);
        call("cuMemAddressFree", &[place, bytes]);
    }
    while let Some(block) = world.blocks.first().copied() {
        world.free(block);
        world.forget(block.number);
    }
    for exec in std::mem::take(&mut world.execs) {
        let result = call("cuGraphExecDestroy", &[exec]);
        world.say("cuGraphExecDestroy", result);
    }
    call("cuDeviceGraphMemTrim", &[0]);
    call("cuCtxSynchronize", &[]);
    for pool in world.pools.clone() {
        World::keep_in_pool(pool, 0);
        let result = call("cuMemPoolTrimTo", &[pool, 0]);
        world.say("cuMemPoolTrimTo 0", result);
    }
    call("cuCtxSynchronize", &[]);
    if world.rules.is_alone {
        compare(world);
    }
}
