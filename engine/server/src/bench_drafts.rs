//! Speed of one greedy answer with the drafts of another model, beside the same answer without drafts.

use crate::engine::{Drafting, Engine, Event, Failure, Generation, Settings, StartError, Submission, Work};
use crate::model::{DraftError, LoadOptions, Model, ModelError, load_draft, open_draft};
use omni_batcher::Limits;
use omni_kernels::{BLOCK, Backend};
use omni_kv_cache::Digest;
use omni_sampler::Parameters;
use omni_tokenizer::EncodeError;
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Beginning of the answer that is measured.
const PROMPT: &str = "The river rises in the hills above the town. It passes two mills and a bridge of stone, and then it \
                      turns to the south, where the valley is wide and the fields are green. In the spring";
/// Tokens of the answer.
const TOKENS: usize = 128;
/// Lengths of drafts, whether they pay or not.
const FIXED: [usize; 2] = [2, 4];

/// Result.
#[derive(Debug, Serialize)]
pub struct DraftReport {
    /// Bytes of the model's weights in memory.
    pub weight_bytes: u64,
    /// Bytes of the draft model's.
    pub draft_weight_bytes: u64,
    /// Answers: without drafts, with drafts where they pay, with drafts of fixed lengths.
    pub answers: Vec<Measured>,
}

/// Speed of an answer.
#[derive(Debug, Serialize)]
pub struct Measured {
    /// Drafts.
    pub drafts: String,
    /// Tokens a second behind the first one: median of the rounds.
    pub tokens_per_second: f64,
    /// Tokens of all rounds that were drafted.
    pub drafted: u64,
    /// Tokens of these that were accepted.
    pub accepted: u64,
}

/// Reason why drafts cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// Files that cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Draft model that cannot be used.
    #[error("draft model: {0}")]
    Draft(#[from] DraftError),
    /// The prompt has no tokens.
    #[error("the prompt cannot be written in the model's tokens: {0}")]
    Prompt(#[from] EncodeError),
    /// Engine that cannot start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The engine has failed.
    #[error(transparent)]
    Engine(#[from] Failure),
}

/// Measures; answers with and without drafts have the same tokens.
///
/// # Errors
/// A model cannot be used, or the engine fails.
pub fn run(model: &Model, draft: &Path, options: &LoadOptions, rounds: usize) -> Result<DraftReport, BenchError> {
    let draft = open_draft(model, draft)?;
    let prompt: Arc<[u32]> = model.tokenizer.encode(PROMPT, true, &[])?.into();
    let mut report = DraftReport { weight_bytes: 0, draft_weight_bytes: 0, answers: Vec::new() };
    for drafting in [Drafting::Off, Drafting::Adaptive].into_iter().chain(FIXED.map(Drafting::Fixed)) {
        let backend = model.load(options, &mut |_, _| {})?;
        let loaded = load_draft(&draft, options)?;
        report.weight_bytes = backend.facts().weight_bytes;
        report.draft_weight_bytes = loaded.weight_bytes();
        let loaded = (drafting != Drafting::Off).then_some(loaded);
        let root = model.root(&backend, None);
        let settings = Settings { drafting, ..Settings::new(limits(prompt.len()), model.vocabulary.clone()) };
        let engine = Engine::with_draft(backend, loaded, settings)?;
        let mut speeds = Vec::new();
        // The first round is not measured: times of steps are learned in it.
        for round in 0..=rounds.max(1) {
            let speed = answer(&engine, &prompt, root)?;
            speeds.extend((round > 0).then_some(speed));
        }
        let status = engine.status();
        report.answers.push(Measured {
            drafts: name(drafting),
            tokens_per_second: median(speeds),
            drafted: status.drafted_tokens,
            accepted: status.accepted_tokens,
        });
    }
    Ok(report)
}

/// Limits of an engine for one sequence.
fn limits(prompt: usize) -> Limits {
    let context = prompt + TOKENS;
    Limits {
        blocks: u32::try_from(context.div_ceil(BLOCK) + 1).unwrap_or(u32::MAX),
        tokens: 512,
        sequences: 1,
        logits: 64,
        context,
        queue: 1,
        ageing: Duration::from_secs(1),
        layers: 1,
    }
}

/// Tokens a second of an answer, behind its first one.
fn answer(engine: &Engine, prompt: &Arc<[u32]>, root: Digest) -> Result<f64, Failure> {
    let parameters = Parameters { temperature: 0.0, ignore_eos: true, ..Parameters::default() };
    let generation = Generation { parameters, max_tokens: TOKENS, choices: 1, grammar: None, prompt_logprobs: false };
    let (prompt, work) = (Arc::clone(prompt), Work::Generate(Box::new(generation)));
    let mut events = engine.submit(Submission { prompt, work, priority: 0, deadline: None, root })?;
    let mut first = None;
    loop {
        match events.blocking_recv().ok_or(Failure::Ending)? {
            Event::Token { .. } => {
                first.get_or_insert_with(Instant::now);
            }
            Event::Ended(_) => {
                let took = first.map_or(0.0, |first| first.elapsed().as_secs_f64());
                return Ok((TOKENS - 1) as f64 / took);
            }
            Event::Failed(failure) => return Err(failure),
            Event::Prompt(_) | Event::Finished { .. } | Event::Embedding(_) => {}
        }
    }
}

fn name(drafting: Drafting) -> String {
    match drafting {
        Drafting::Off => "none".to_owned(),
        Drafting::Adaptive => "where they pay".to_owned(),
        Drafting::Fixed(length) => format!("{length} tokens"),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
