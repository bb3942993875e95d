//! Tables of the architectures.

mod bert;
mod gemma3;
mod llama;
mod mistral;
mod qwen2;
mod qwen3;
mod qwen3_moe;

use crate::architecture::Architecture;

/// All architectures.
pub(crate) const ALL: &[&Architecture] = &[
    &llama::LLAMA,
    &mistral::MISTRAL,
    &qwen2::QWEN2,
    &qwen3::QWEN3,
    &qwen3_moe::QWEN3_MOE,
    &gemma3::GEMMA3,
    &bert::BERT,
];
