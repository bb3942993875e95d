//! Accounting file of one instance, as the worker reads it: bytes that the model may have written.
//!
//! Read at one place, a bounded amount, and never mapped. A slot counts while its process is alive: the slot names it
//! as the sandbox numbers it, so the processes of the control group are looked up by their number inside (`NSpid` of
//! `/proc/<pid>/status`) and their start time; a slot without a start time, of a process that could not open its own
//! `/proc`, belongs to the process that has its number. The program that such a process runs by now is not looked up:
//! that stands in its own memory, and reading there could wait for the model. So memory that went with an exec is
//! counted until the new program's shim clears it, or the process ends.

use nix::unistd::Pid;
use omni_gpu_protocol::account::{FILE_BYTES, Slot, sum};
use omni_node_protocol::instance::GpuUsage;
use omni_process::pidfd;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

/// Accounting file of an instance, opened by the worker.
#[derive(Debug)]
pub(super) struct Account(File);

impl Account {
    pub(super) fn new(file: File) -> Self {
        Self(file)
    }

    /// Sums what the living ones of these processes (as this process's namespace numbers them) have recorded.
    pub(super) fn usage(&self, processes: &[i32]) -> GpuUsage {
        let alive: HashMap<u32, u64> = processes.iter().filter_map(|pid| identity(*pid)).collect();
        let total = sum(&self.read(), |slot: &Slot| {
            alive.get(&slot.pid).is_some_and(|began| slot.start_time == 0 || slot.start_time == *began)
        });
        GpuUsage {
            managed_bytes: total.managed,
            resident_bytes: total.resident,
            device_bytes: total.device,
            host_bytes: total.host,
        }
    }

    /// As much as there is: a model may have made it shorter.
    fn read(&self) -> Vec<u8> {
        let (mut bytes, mut length) = (vec![0; FILE_BYTES], 0);
        while let Some(rest) = bytes.get_mut(length..).filter(|rest| !rest.is_empty()) {
            match self.0.read_at(rest, length as u64) {
                Ok(0) => break,
                Ok(more) => length += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        bytes.truncate(length);
        bytes
    }
}

/// Number of a process in its innermost namespace, and its start time, in clock ticks since boot. `None` when it is
/// gone.
fn identity(pid: i32) -> Option<(u32, u64)> {
    let inside = pidfd::namespace_pid(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)?;
    Some((u32::try_from(inside).ok()?, pidfd::started_ticks(Pid::from_raw(pid))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use omni_gpu_protocol::account::{HEADER_BYTES, MAGIC, SLOT_BYTES};

    #[test]
    fn a_process_is_known_by_its_number_inside_and_its_beginning() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(identity(own).is_some());
        assert_eq!(identity(-1), None);
    }

    #[test]
    fn only_the_living_count_in_a_file_of_any_length() {
        let file = tempfile::tempfile().unwrap();
        let account = Account::new(file.try_clone().unwrap());
        let own = i32::try_from(std::process::id()).unwrap();
        let (pid, start) = identity(own).unwrap();
        let gone = u64::from(u32::MAX);
        let slots = [
            [pid.into(), start, 0, 100, 40, 7, 3],
            [pid.into(), start + 1, 0, 9, 9, 9, 9],
            [pid.into(), 0, 0, 1000, 500, 0, 0],
            [gone, 0, 0, 9, 9, 9, 9],
            [gone, start, 0, 9, 9, 9, 9],
        ];
        let mut bytes = vec![0; HEADER_BYTES + slots.len() * SLOT_BYTES];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        for (number, words) in slots.iter().enumerate() {
            for (place, word) in words.iter().enumerate() {
                let at = HEADER_BYTES + number * SLOT_BYTES + place * 8;
                bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
        }
        let full = GpuUsage { managed_bytes: 1100, resident_bytes: 560, device_bytes: 7, host_bytes: 3 };
        let nothing = GpuUsage::default();
        for (length, expected) in
            [(0, nothing), (HEADER_BYTES, nothing), (bytes.len(), full), (FILE_BYTES, full), (9 * FILE_BYTES, full)]
        {
            file.set_len(0).unwrap();
            file.write_all_at(&bytes[..length.min(bytes.len())], 0).unwrap();
            file.set_len(length as u64).unwrap();
            assert_eq!(account.usage(&[own, -1]), expected, "{length}");
            assert_eq!(account.usage(&[]), nothing);
        }
    }
}
