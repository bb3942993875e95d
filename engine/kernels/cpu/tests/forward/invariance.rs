//! Results bit for bit, whatever is computed together.

use super::model::{Model, Shape, all};
use super::runner::{Part, Runner, blocks, combinations, options, tokens};
use omni_kernels::{BLOCK, Backend, BlockCopy, BlockId};
use omni_kernels_cpu::{CacheFormat, Level, Weights};

/// Models of sequences that can be cut.
fn decoders() -> Vec<(&'static str, Shape)> {
    all().into_iter().filter(|(_, shape)| !shape.all).collect()
}

/// Computes a sequence in steps that end at the cuts.
fn cut(runner: &mut Runner, tokens: &[u32], cuts: &[usize], blocks: &[BlockId]) -> Vec<Vec<u32>> {
    let mut rows = Vec::new();
    let mut start = 0;
    for end in cuts.iter().copied().chain([tokens.len()]) {
        let used = &blocks[..end.div_ceil(BLOCK)];
        let part = Part { tokens: &tokens[start..end], start, blocks: used, logits: end - start };
        rows.extend(runner.step(&[part]).remove(0));
        start = end;
    }
    rows
}

#[test]
fn a_sequence_is_the_same_at_every_cut() {
    let mut random = fastrand::Rng::with_seed(1);
    for (name, shape) in decoders() {
        let model = Model::new(name, &shape, 3);
        let tokens = tokens(&mut random, 70);
        for options in combinations() {
            let mut runner = Runner::new(&model, options);
            let whole = runner.whole(&tokens);
            let blocks = blocks(5, tokens.len());
            let is_best = options.level == Level::detect() && options.weights == Weights::AsStored;
            for at in (1..tokens.len()).step_by(if is_best { 1 } else { 13 }) {
                assert!(cut(&mut runner, &tokens, &[at], &blocks) == whole, "{name}, {options:?}, cut at {at}");
            }
            let each: Vec<usize> = (1..tokens.len()).collect();
            assert!(cut(&mut runner, &tokens, &each, &blocks) == whole, "{name}, {options:?}, token by token");
        }
    }
}

#[test]
fn a_long_sequence_is_the_same_at_random_cuts() {
    let mut random = fastrand::Rng::with_seed(2);
    for (name, shape) in decoders() {
        let model = Model::new(name, &shape, 4);
        let all = tokens(&mut random, 620);
        let blocks = blocks(9, all.len());
        for options in combinations() {
            // Two splits of positions where it takes long, else three.
            let tokens = if options.level == Level::detect() { &all[..] } else { &all[..300] };
            let mut runner = Runner::new(&model, options);
            let whole = runner.whole(tokens);
            let mut cuts: Vec<usize> = (0..random.usize(1..9)).map(|_| random.usize(1..tokens.len())).collect();
            cuts.extend(tokens.len() - 30..tokens.len() - 23);
            cuts.sort_unstable();
            cuts.dedup();
            assert!(cut(&mut runner, tokens, &cuts, &blocks) == whole, "{name}, {options:?}, cuts at {cuts:?}");
        }
    }
}

#[test]
fn a_sequence_is_the_same_beside_others() {
    let mut random = fastrand::Rng::with_seed(3);
    for (name, shape) in decoders() {
        let model = Model::new(name, &shape, 5);
        let all: Vec<Vec<u32>> = [270, 1, 33, 70].iter().map(|count| tokens(&mut random, *count)).collect();
        for options in combinations() {
            let mut runner = Runner::new(&model, options);
            let alone: Vec<Vec<Vec<u32>>> = all.iter().map(|tokens| runner.whole(tokens)).collect();
            // First all but the last three tokens where there are as many, then one by one, then the rest.
            let mut starts = vec![0; all.len()];
            let mut first = 0;
            let tables: Vec<Vec<BlockId>> = all
                .iter()
                .map(|tokens| {
                    let table = (first..first + tokens.len().div_ceil(BLOCK) as u32).map(BlockId).collect::<Vec<_>>();
                    first += table.len() as u32;
                    table
                })
                .collect();
            for round in 0..4 {
                let mut parts = Vec::new();
                for (at, tokens) in all.iter().enumerate() {
                    let left = tokens.len() - starts[at];
                    let count = if round == 0 { left.saturating_sub(3).max(1) } else { 1 };
                    if count <= left {
                        let end = starts[at] + count;
                        let (tokens, blocks) = (&tokens[starts[at]..end], &tables[at][..end.div_ceil(BLOCK)]);
                        parts.push((at, Part { tokens, start: starts[at], blocks, logits: count }));
                    }
                }
                random.shuffle(&mut parts);
                let plain: Vec<Part<'_>> = parts.iter().map(|(_, part)| part.clone()).collect();
                for ((at, part), rows) in parts.iter().zip(runner.step(&plain)) {
                    let end = part.start + part.tokens.len();
                    assert!(rows == alone[*at][part.start..end], "{name}, {options:?}, sequence {at}, round {round}");
                    starts[*at] = end;
                }
            }
        }
    }
}

#[test]
fn a_sequence_goes_on_from_copied_exported_and_imported_blocks() {
    let mut random = fastrand::Rng::with_seed(4);
    for (name, shape) in decoders() {
        let model = Model::new(name, &shape, 6);
        let tokens = tokens(&mut random, 75);
        for options in combinations() {
            let mut runner = Runner::new(&model, options);
            let whole = runner.whole(&tokens);
            let (first, second, third) = (blocks(1, 75), blocks(2, 75), blocks(3, 75));
            cut(&mut runner, &tokens[..50], &[], &first);
            let copies: Vec<BlockCopy> =
                first.iter().zip(&second).take(4).map(|(from, to)| BlockCopy { from: *from, to: *to }).collect();
            let rest = |blocks| Part { tokens: &tokens[50..], start: 50, blocks, logits: 25 };
            let rows = runner.try_step(&copies, &[rest(&second)]).unwrap().remove(0);
            assert!(rows == whole[50..], "{name}, {options:?}, copied");

            let exported = runner.export(&first[..4]);
            let mut other = Runner::new(&model, options);
            for (block, bytes) in third.iter().zip(&exported) {
                other.backend.import(*block, bytes);
            }
            let rows = other.step(&[rest(&third)]).remove(0);
            assert!(rows == whole[50..], "{name}, {options:?}, imported");
            assert!(other.export(&third[..3]) == exported[..3], "{name}, {options:?}, exported again");
        }
    }
}

#[test]
fn results_do_not_depend_on_threads() {
    let mut random = fastrand::Rng::with_seed(5);
    for (name, shape) in all() {
        let model = Model::new(name, &shape, 7);
        let tokens = tokens(&mut random, 500);
        let runs = [1, 2, 3, 5].map(|threads| {
            let options = options(Level::detect(), Weights::AsStored, CacheFormat::Bf16, threads);
            Runner::new(&model, options).whole(&tokens)
        });
        assert!(runs.iter().all(|run| *run == runs[0]), "{name}");
    }
}

#[test]
fn embeddings_are_the_same_beside_others() {
    let mut random = fastrand::Rng::with_seed(6);
    for (name, shape) in all().into_iter().filter(|(_, shape)| shape.all) {
        let model = Model::new(name, &shape, 8);
        let sequences: Vec<Vec<u32>> = [40, 300, 1].iter().map(|count| tokens(&mut random, *count)).collect();
        for options in combinations() {
            let mut runner = Runner::new(&model, options);
            let alone: Vec<_> = sequences.iter().map(|tokens| runner.whole(tokens)).collect();
            let tables = [0, 10, 60].map(|first| (first..first + 20).map(BlockId).collect::<Vec<_>>());
            let parts =
                sequences.iter().zip(&tables).map(|(tokens, blocks)| Part { tokens, start: 0, blocks, logits: 0 });
            let together = runner.step(&parts.collect::<Vec<_>>());
            assert!(together == alone, "{name}, {options:?}");
        }
    }
}
