//! The accounting file of a GPU model, in which the model can write what it likes: sums are right, and never wrap.

use omni_gpu_protocol::account::{FILE_BYTES, HEADER_BYTES, MAGIC, SLOT_BYTES, SLOTS, Slot, Use, slots, sum};

/// Bytes of one slot that mean something.
const WORDS: usize = 7 * 8;

/// Reads the bytes as a file, and as the slots of a file that is set up.
///
/// # Panics
/// A sum is not what the slots say, or more than there can be.
pub fn holds(data: &[u8]) {
    file(data);
    let mut made = vec![0; HEADER_BYTES];
    made[..8].copy_from_slice(&MAGIC.to_le_bytes());
    for slot in data.chunks(WORDS) {
        made.extend_from_slice(slot);
        // A last one that is cut off ends the file in the middle of a slot.
        if slot.len() == WORDS {
            made.extend_from_slice(&[0xff; SLOT_BYTES - WORDS]);
        }
    }
    file(&made);
}

fn file(file: &[u8]) {
    assert!(slots(file).count() <= SLOTS);
    let all = check(file, |_| true);
    let odd = check(file, |pid| pid % 2 == 1);
    let even = check(file, |pid| pid % 2 == 0);
    assert_eq!(check(file, |_| false), Use::default());
    let both = [
        (all.managed, odd.managed, even.managed),
        (all.device, odd.device, even.device),
        (all.host, odd.host, even.host),
    ];
    assert!(both.iter().all(|(all, odd, even)| *all == odd.saturating_add(*even)), "{all:?}");
    // Bytes behind the last possible slot belong to no slot.
    assert_eq!(sum(&file[..file.len().min(FILE_BYTES)], |_| true), all);
}

/// The same sums, in numbers that cannot overflow.
fn check(file: &[u8], is_alive: impl Fn(u32) -> bool) -> Use {
    let said = sum(file, |slot: &Slot| is_alive(slot.pid));
    let is_set_up = file.starts_with(&MAGIC.to_le_bytes());
    let (mut managed, mut resident, mut device, mut host) = (0_u128, 0_u128, 0_u128, 0_u128);
    for number in 0..if is_set_up { SLOTS } else { 0 } {
        let begin = HEADER_BYTES + number * SLOT_BYTES;
        let Some(slot) = file.get(begin..begin + SLOT_BYTES) else { break };
        let word = |place: usize| {
            u128::from(u64::from_le_bytes(slot[place * 8..place * 8 + 8].try_into().expect("eight bytes")))
        };
        let pid = u32::from_le_bytes(slot[..4].try_into().expect("four bytes"));
        if pid != 0 && is_alive(pid) {
            managed += word(3);
            resident += word(3).saturating_sub(word(4));
            device += word(5);
            host += word(6);
        }
    }
    let most = |sum: u128| u64::try_from(sum).unwrap_or(u64::MAX);
    let expected = Use { managed: most(managed), resident: most(resident), device: most(device), host: most(host) };
    assert_eq!(said, expected);
    assert_eq!(said.limited(), most(u128::from(said.managed) + u128::from(said.device)));
    assert!(said.resident <= said.managed);
    said
}
