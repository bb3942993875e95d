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
fn a_sequence_is_the_same_through_some_layers_at_a_time() {
    let mut random = fastrand::Rng::with_seed(7);
    for (name, shape) in decoders() {
        let model = Model::new(name, &shape, 9);
        let (all, beside) = (tokens(&mut random, 70), tokens(&mut random, 40));
        for options in combinations() {
            let mut runner = Runner::new(&model, options);
            let layers = runner.backend.facts().layers;
            assert!(layers > 1, "{name}");
            let (whole, whole_beside) = (runner.whole(&all), runner.whole(&beside));
            let blocks = blocks(5, all.len());
            let table: Vec<BlockId> = (100..103).map(BlockId).collect();
            cut(&mut runner, &beside[..20], &[], &table);
            let (mut start, mut next) = (0, 20);
            while start < all.len() {
                let end = all.len().min(start + random.usize(1..=BLOCK));
                let mut layer = 0;
                while layer < layers {
                    // Never all of them, as that is no part.
                    let until = random.usize(layer + 1..=layers.min(layer + layers - 1));
                    let is_last = until == layers;
                    let other = Part { tokens: &beside[next..=next], start: next, blocks: &table, logits: 1 };
                    let own = Part {
                        tokens: &all[start..end],
                        start,
                        blocks: &blocks[..end.div_ceil(BLOCK)],
                        logits: if is_last { end - start } else { 0 },
                    };
                    let has_other = random.bool();
                    let parts = if has_other { vec![other, own] } else { vec![own] };
                    let mut rows = runner.try_layers(Some(layer..until), &[], &parts).unwrap();
                    let expected = if is_last { &whole[start..end] } else { &[] };
                    assert!(rows.pop().unwrap() == expected, "{name}, {options:?}, layers {layer}..{until}");
                    if has_other {
                        assert!(
                            rows[0][0] == whole_beside[next],
                            "{name}, {options:?}, beside layers {layer}..{until}"
                        );
                        next = if next + 1 < beside.len() { next + 1 } else { 20 };
                    }
                    layer = until;
                }
                start = end;
            }
        }
    }
}

#[test]
fn layers_that_do_not_continue_a_segment_are_refused() {
    let mut random = fastrand::Rng::with_seed(8);
    let (name, shape) = decoders().remove(0);
    let model = Model::new(name, &shape, 10);
    let tokens = tokens(&mut random, 20);
    let mut runner = Runner::new(&model, combinations().remove(0));
    let layers = runner.backend.facts().layers;
    let blocks = blocks(5, tokens.len());
    let part = |count: usize, logits: usize| Part { tokens: &tokens[..count], start: 0, blocks: &blocks, logits };
    let mut refused = |layers, part: Part<'_>| runner.try_layers(Some(layers), &[], &[part]).is_err();
    assert!(refused(1..layers, part(4, 0)), "nothing is kept");
    assert!(refused(0..layers, part(4, 0)), "all layers are no part");
    assert!(refused(0..0, part(4, 0)) && refused(0..layers + 1, part(4, 0)));
    assert!(refused(0..1, part(4, 1)), "logits come with the last layer");
    assert!(refused(0..1, part(BLOCK + 1, 0)), "more than a block is not kept");
    assert!(!refused(0..1, part(4, 0)));
    assert!(refused(1..layers, part(5, 0)), "other tokens");
    assert!(!refused(1..layers, part(4, 1)));
    assert!(refused(1..layers, part(4, 1)), "it has ended");
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
