//! Speed of the kernels: `cargo test --release -p omni-kernels-cpu --lib -- --ignored --nocapture speed`.

use super::*;
use std::time::Instant;

/// Bytes of the weights of a measurement, far more than the caches hold.
const WEIGHTS: usize = 256 << 20;

/// Shortest time of some runs.
fn shortest(runs: usize, mut work: impl FnMut()) -> f64 {
    (0..runs).fold(f64::INFINITY, |best, _| {
        let start = Instant::now();
        work();
        best.min(start.elapsed().as_secs_f64())
    })
}

/// Bytes a second that all threads read from memory, by sums of whole lines.
fn bandwidth(threads: &Threads) -> f64 {
    let words = vec![1_u64; WEIGHTS / 8];
    let time = shortest(5, || {
        threads.run(|part, parts| {
            let length = words.len() / parts;
            let lines = words[part * length..][..length].as_chunks::<32>().0;
            let sums = lines.iter().fold([0_u64; 32], |mut sums, line| {
                sums.iter_mut().zip(line).for_each(|(sum, word)| *sum = sum.wrapping_add(*word));
                sums
            });
            std::hint::black_box(sums);
        });
    });
    (WEIGHTS as f64) / time
}

#[test]
#[ignore = "measures speed for some minutes"]
fn speed_of_every_form_and_level() {
    let processors = std::thread::available_parallelism().unwrap().get();
    let only = std::env::var("SPEED").unwrap_or_default();
    let threads = Threads::new(processors).unwrap();
    println!("{processors} threads; memory is read at {:.1} GB/s", bandwidth(&threads) / 1e9);
    println!("{:26} {:12} {:>9} {:>5} {:>9} {:>8}", "form", "level", "shape", "rows", "GFLOP/s", "GB/s");
    for (form, level) in forms_and_levels().filter(|(_, level)| *level != Level::Scalar) {
        if !format!("{form:?} {level} ").contains(&only) {
            continue;
        }
        for (inputs, outputs) in [(768, 2048), (4096, 4096)] {
            let weights = numbers(&mut fastrand::Rng::with_seed(1), outputs * inputs);
            let bytes = stored(form, &weights);
            let source = matrix(form, &bytes, outputs, inputs);
            let mut packer = Packer::new(level, &threads);
            let mut pack = || packer.pack_in(form, &source, &Rows::all(outputs)).unwrap();
            // Copies of a matrix, so that none stays in a cache.
            let mut matrices = vec![pack()];
            matrices.resize_with((WEIGHTS / matrices[0].bytes() as usize).max(1), pack);
            for rows in [1, 8, 16, 512] {
                measure(form, level, &matrices, rows, &threads);
            }
        }
    }
    println!("memory is read at {:.1} GB/s", bandwidth(&threads) / 1e9);
}

fn measure(form: Form, level: Level, matrices: &[PackedMatrix], rows: usize, threads: &Threads) {
    let (inputs, outputs) = (matrices[0].inputs(), matrices[0].outputs());
    let values = numbers(&mut fastrand::Rng::with_seed(2), rows * inputs);
    let mut input = Input::new(level);
    let mut out = vec![0.0; rows * outputs];
    // A pass over all copies where memory is the limit, a few of them where it is not.
    let used = if rows > 16 { matrices.len().min(4) } else { matrices.len() };
    let time = shortest(if rows > 16 { 3 } else { 5 }, || {
        for matrix in &matrices[..used] {
            input.prepare(matrix.input_kind(), &values, rows, inputs, threads);
            multiply(threads, &input, &mut [Product::new(matrix, &mut out, outputs)]);
        }
    });
    let operations = 2.0 * (rows * inputs * outputs * used) as f64;
    let bytes = matrices[0].bytes() as f64 * used as f64;
    let (form, shape) = (format!("{form:?}"), format!("{inputs}x{outputs}"));
    println!(
        "{form:26} {level:12} {shape:>9} {rows:5} {:9.0} {:8.1}",
        operations / time / 1e9,
        bytes / time / 1e9,
        level = level.to_string()
    );
}
