//! Models of foreign files: a description that fits together or a sentence, and a step that ends.

use crate::{memory, sentence};
use omni_architectures::{Source, check, describe};
use omni_checkpoint::Checkpoint;
use omni_kernels::model::ModelSpec;
use omni_kernels::{Backend, BlockId, Capacity, Segment, StepPlan};
use omni_kernels_cpu::{CacheFormat, CpuBackend, Level, Options, Weights};
use std::sync::Arc;

/// Memory of the largest description, whose layers and experts a few bytes can ask for, and for each byte of the files.
const BASE: usize = 96 << 20;
const FACTOR: usize = 256;
/// Tokens of a step.
const TOKENS: usize = 3;

/// Describes a model whose files have so many bytes. `None`: it is refused.
pub(crate) fn described(source: &Source<'_>, size: usize) -> Option<ModelSpec> {
    match memory::at_most(BASE + FACTOR * size, || describe(source)) {
        Ok(spec) => {
            assert_eq!(check(&spec), Ok(()));
            Some(spec)
        }
        Err(error) => {
            sentence::holds(&error.to_string());
            None
        }
    }
}

/// Loads a model in every form of its weights, and computes a step.
pub(crate) fn computes(spec: &ModelSpec, checkpoint: &Arc<Checkpoint>) {
    for weights in [Weights::AsStored, Weights::F32, Weights::Int8, Weights::Int4] {
        let options = Options { weights, level: Level::Scalar, threads: 1, cache: CacheFormat::Bf16 };
        let mut backend = match CpuBackend::load(spec, Arc::clone(checkpoint), options, &mut |_, _| ()) {
            Ok(backend) => backend,
            Err(error) => {
                sentence::holds(&error.to_string());
                continue;
            }
        };
        let capacity = Capacity { blocks: 1, tokens: TOKENS, segments: 1, logits: TOKENS };
        backend.reserve(capacity).expect("memory for a few tokens");
        let count = TOKENS.min(spec.context);
        let last = u32::try_from(spec.vocabulary - 1).expect("tokens of 32 bits");
        let plan = StepPlan {
            tokens: [0, last, last / 2].into_iter().take(count).collect(),
            blocks: vec![BlockId(0)],
            segments: vec![Segment { tokens: 0..count, start: 0, blocks: 0..1, logits: 1 }],
            ..StepPlan::default()
        };
        backend.step(&plan).expect("a step within the capacity");
        assert_eq!(backend.row(0).len(), backend.facts().row_width);
    }
}
