//! Requests to an engine, and all that came of them.

use omni_engine::engine::{Engine, Event, Events, FinishReason, Generation, Submission, Token, Usage, Work};
use omni_kv_cache::Root;
use omni_sampler::Parameters;
use std::time::{Duration, Instant};

/// Answer to a request.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Answer {
    /// Tokens of each choice, and its end.
    pub(crate) choices: Vec<(Vec<Token>, Option<FinishReason>)>,
    pub(crate) prompt: Vec<Token>,
    pub(crate) usage: Usage,
}

/// Greedy answer of so many tokens.
pub(crate) fn greedy(max_tokens: usize) -> Generation {
    let parameters = Parameters { temperature: 0.0, ignore_eos: true, ..Parameters::default() };
    Generation { parameters, max_tokens, choices: 1, grammar: None, prompt_logprobs: false }
}

pub(crate) fn submit(engine: &Engine, prompt: &[u32], generation: &Generation) -> Events {
    let submission = Submission {
        prompt: prompt.into(),
        work: Work::Generate(Box::new(generation.clone())),
        priority: 0,
        deadline: None,
        root: Root::default().digest(),
    };
    engine.submit(submission).unwrap()
}

/// Waits for the end of an answer.
pub(crate) fn collect(mut events: Events, choices: u32) -> Answer {
    let mut answer = Answer { choices: vec![(Vec::new(), None); choices as usize], ..Answer::default() };
    loop {
        match events.blocking_recv().expect("the engine has ended") {
            Event::Prompt(token) => answer.prompt.push(token),
            Event::Token { choice, token } => answer.choices[choice as usize].0.push(token),
            Event::Finished { choice, reason } => answer.choices[choice as usize].1 = Some(reason),
            Event::Ended(usage) => {
                answer.usage = usage;
                return answer;
            }
            event @ (Event::Embedding(_) | Event::Failed(_)) => panic!("{event:?}"),
        }
    }
}

pub(crate) fn ask(engine: &Engine, prompt: &[u32], generation: &Generation) -> Answer {
    collect(submit(engine, prompt, generation), generation.choices)
}

/// Ids of the first choice.
pub(crate) fn ids(answer: &Answer) -> Vec<u32> {
    answer.choices[0].0.iter().map(|token| token.id).collect()
}

/// Waits until an engine without requests holds no block, and asserts that none is lost.
pub(crate) fn assert_blocks_back(engine: &Engine, blocks: usize) {
    let since = Instant::now();
    loop {
        let status = engine.status();
        let batcher = status.batcher;
        if (batcher.used_blocks, batcher.running, batcher.waiting, status.draft_blocks) == (0, 0, 0, 0) {
            assert_eq!(batcher.free_blocks + batcher.cached_blocks, blocks);
            assert_eq!(status.queued_bytes, 0);
            return;
        }
        assert!(since.elapsed() < Duration::from_secs(20), "{status:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
