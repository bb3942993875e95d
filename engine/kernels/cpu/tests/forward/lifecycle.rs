//! Memory, sleep and what is refused.

use super::model::{Model, Shape, all};
use super::runner::{CAPACITY, Part, Runner, blocks, options, tokens};
use omni_kernels::{Backend, BackendError, BlockCopy, BlockId, Capacity};
use omni_kernels_cpu::{CacheFormat, CpuBackend, Level, Weights};
use std::sync::Arc;

fn plain() -> omni_kernels_cpu::Options {
    options(Level::detect(), Weights::AsStored, CacheFormat::Bf16, 2)
}

#[test]
fn a_backend_sleeps_and_wakes_with_the_same_results() {
    let mut random = fastrand::Rng::with_seed(1);
    let model = Model::new("llama", &Shape::default(), 1);
    let mut runner = Runner::new(&model, plain());
    let tokens = tokens(&mut random, 40);
    let before = runner.whole(&tokens);
    let freed = runner.backend.sleep().unwrap();
    assert_eq!(freed, runner.backend.facts().weight_bytes + runner.backend.bytes(CAPACITY));
    assert_eq!(runner.backend.sleep().unwrap(), 0);
    let blocks = blocks(0, 40);
    let part = Part { tokens: &tokens, start: 0, blocks: &blocks, logits: 1 };
    let refused = runner.try_step(&[], std::slice::from_ref(&part));
    assert!(matches!(refused, Err(BackendError::Plan(_))));
    assert!(runner.backend.row(0).is_empty());
    runner.backend.wake().unwrap();
    assert!(runner.whole(&tokens) == before);
}

#[test]
fn only_wanted_rows_of_logits_are_there() {
    let mut random = fastrand::Rng::with_seed(2);
    for (name, shape) in all().into_iter().filter(|(_, shape)| !shape.all) {
        let model = Model::new(name, &shape, 2);
        let mut runner = Runner::new(&model, plain());
        let tokens = tokens(&mut random, 40);
        let whole = runner.whole(&tokens);
        let (first, second) = (blocks(0, 40), blocks(1, 40));
        let part = |blocks, logits| Part { tokens: &tokens, start: 0, blocks, logits };
        let rows = runner.step(&[part(&first, 3), part(&second, 0)]);
        assert!(rows[0] == whole[37..] && rows[1].is_empty(), "{name}");
        assert!(runner.step(&[part(&second, 0)])[0].is_empty(), "{name}");
    }
}

#[test]
fn a_step_without_tokens_copies_blocks() {
    for (name, shape) in all() {
        let model = Model::new(name, &shape, 7);
        let mut runner = Runner::new(&model, plain());
        runner.whole(&[1, 2, 3]);
        let copy = BlockCopy { from: blocks(0, 1)[0], to: BlockId(100) };
        assert!(runner.try_step(&[copy], &[]).unwrap().is_empty(), "{name}");
        assert!(runner.export(&[copy.from]) == runner.export(&[copy.to]), "{name}");
    }
}

#[test]
fn a_wrong_plan_is_refused() {
    let model = Model::new("llama", &Shape::default(), 3);
    let mut runner = Runner::new(&model, plain());
    let (tokens, blocks) = (vec![1; 40], blocks(0, 40));
    let good = Part { tokens: &tokens, start: 0, blocks: &blocks, logits: 1 };
    let long = vec![1; 701];
    let unknown = vec![61];
    let outside = [BlockId(CAPACITY.blocks)];
    let twice = [BlockId(1), BlockId(1), BlockId(2)];
    let bad = [
        Part { tokens: &[], ..good.clone() },
        Part { tokens: &long, ..good.clone() },
        Part { tokens: &unknown, ..good.clone() },
        Part { start: 10, ..good.clone() },
        Part { start: usize::MAX, ..good.clone() },
        Part { start: 620, ..good.clone() },
        Part { logits: 41, ..good.clone() },
        Part { blocks: &[], ..good.clone() },
        Part { tokens: &[1], blocks: &outside, ..good.clone() },
        Part { blocks: &twice, ..good.clone() },
    ];
    for (at, part) in bad.into_iter().enumerate() {
        assert!(matches!(runner.try_step(&[], &[part]), Err(BackendError::Plan(_))), "part {at}");
    }
    let shared = [good.clone(), Part { tokens: &tokens[..1], ..good.clone() }];
    assert!(matches!(runner.try_step(&[], &shared), Err(BackendError::Plan(_))));
    let many = vec![Part { tokens: &tokens[..1], ..good.clone() }; 9];
    assert!(matches!(runner.try_step(&[], &many), Err(BackendError::Plan(_))));
    runner.step(&[good]);
}

#[test]
fn a_tensor_of_another_shape_is_named() {
    let model = Model::new("llama", &Shape { bias: true, ..Shape::default() }, 4);
    let load = |spec| CpuBackend::load(&spec, Arc::clone(&model.checkpoint), plain(), &mut |_, _| ());
    let refused = |change: &dyn Fn(&mut omni_kernels::model::ModelSpec), tensor: &str| {
        let mut spec = model.spec.clone();
        change(&mut spec);
        let error = load(spec).unwrap_err().to_string();
        assert!(error.contains(tensor), "{error}");
    };
    refused(&|spec| spec.layers[1].attention.query.outputs += 1, "layers.1.query.weight");
    refused(&|spec| spec.layers[0].attention.key.weight.0.push('x'), "layers.0.key.weightx");
    refused(&|spec| spec.layers[0].attention.output.inputs -= 1, "layers.0.output.weight");
    refused(&|spec| spec.vocabulary += 1, "tokens.weight");
    refused(&|spec| spec.hidden += 1, "tokens.weight");
    refused(&|spec| spec.norm.as_mut().unwrap().weight.0 = "layers.0.query.bias".to_owned(), "layers.0.query.bias");
}

#[test]
fn a_level_that_the_processor_lacks_is_refused() {
    let model = Model::new("llama", &Shape::default(), 7);
    let supported = Level::all_supported();
    for level in [Level::Scalar, Level::Avx2, Level::Avx512, Level::Avx512Bf16, Level::Amx] {
        let options = omni_kernels_cpu::Options { level, ..plain() };
        let result = CpuBackend::load(&model.spec, Arc::clone(&model.checkpoint), options, &mut |_, _| ());
        assert_eq!(result.is_ok(), supported.contains(&level), "{level}");
        if let Err(error) = result {
            assert!(matches!(&error, BackendError::Tensor { .. }), "{error}");
            assert!(error.to_string().contains(&level.to_string()), "{error}");
        }
    }
    assert!(Level::detect().is_supported());
}

#[test]
fn memory_that_is_not_to_be_had_is_an_error() {
    let model = Model::new("llama", &Shape::default(), 6);
    let mut runner = Runner::new(&model, plain());
    let capacity = |blocks, tokens| Capacity { blocks, tokens, segments: 1, logits: 1 };
    for capacity in [capacity(1, usize::MAX), capacity(1, usize::MAX / 1000), capacity(u32::MAX, 1)] {
        // The largest cache may be had as addresses.
        if let Err(error) = runner.backend.reserve(capacity) {
            assert!(matches!(error, BackendError::Memory { .. }), "{error}");
        }
    }
    runner.backend.reserve(CAPACITY).unwrap();
    runner.whole(&[1, 2, 3]);
}

#[test]
fn progress_reaches_its_total() {
    let model = Model::new("llama", &Shape::default(), 5);
    let mut last = (0, 1);
    CpuBackend::load(&model.spec, Arc::clone(&model.checkpoint), plain(), &mut |done, total| {
        assert!(done <= total && done >= last.0);
        last = (done, total);
    })
    .unwrap();
    assert_eq!(last.0, last.1);
}
