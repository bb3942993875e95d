//! Tests of the whole crate: files are written, opened and read.

mod golden;
mod hostile;
mod packed;
mod properties;
mod sources;

use crate::{Checkpoint, CheckpointError};
use std::fs;
use tempfile::TempDir;

/// Directory with files.
fn directory(files: &[(&str, &[u8])]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(directory.path().join(name), bytes).unwrap();
    }
    directory
}

/// Opens a directory of these files.
fn open(files: &[(&str, &[u8])]) -> Result<Checkpoint, CheckpointError> {
    Checkpoint::open(directory(files).path()) // a mapping outlives its file's name
}

/// Message of a refusal of these files, without the path of their directory.
fn refusal(files: &[(&str, &[u8])]) -> String {
    let directory = directory(files);
    let message = Checkpoint::open(directory.path()).unwrap_err().to_string();
    message.replace(&format!("{}/", directory.path().display()), "")
}

/// Numbers between -1 and 1 that look like chance.
fn numbers(count: usize) -> Vec<f32> {
    let mut random = sequence(7);
    (0..count).map(|_| (random() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// Sequence of numbers of 64 bits (SplitMix64).
fn sequence(mut seed: u64) -> impl FnMut() -> u64 {
    move || {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = (seed ^ seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ number >> 31
    }
}

/// Reads all that a checkpoint holds, as far as it can be read as numbers.
fn read_all(checkpoint: &Checkpoint) {
    let names: Vec<&str> = checkpoint.names().collect();
    for name in names {
        let _ = checkpoint.vector(name);
        if let Ok(matrix) = checkpoint.matrix(name) {
            let mut row = vec![0.0; matrix.columns];
            let mut unpacked = crate::GroupedRow::default();
            for number in 0..matrix.rows {
                matrix.row(number, &mut row);
                if let crate::Values::Grouped(grouped) = matrix.values {
                    grouped.row(number, &mut unpacked);
                    assert_eq!(unpacked.quants.len(), matrix.columns);
                    assert_eq!(unpacked.scales.len(), matrix.columns / grouped.group());
                }
            }
        }
    }
    if let Some(metadata) = checkpoint.gguf() {
        for key in metadata.keys() {
            let found = [
                metadata.text(key).is_some(),
                metadata.u64(key).is_some(),
                metadata.f32(key).is_some(),
                metadata.bool(key).is_some(),
                metadata.texts(key).is_some(),
                metadata.f32s(key).is_some(),
                metadata.i32s(key).is_some(),
            ];
            // An empty array of numbers has no type that tells.
            assert!(found.iter().filter(|found| **found).count() <= 2, "{key} has several types");
        }
    }
}
