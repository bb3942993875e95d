//! Shapes of answers that the tests of all encoders render: a module of those tests, by its path.

#![allow(dead_code, reason = "not every encoder needs all facts of a shape")]

use bytes::BytesMut;
use omni_generation::encoder::StreamFailure;
use omni_generation::{
    Alternative, Choice, Completion, Delta, Finish, FinishReason, ResponseEncoder, TokenInfo, Usage,
};
use omni_request_error::Failure;
use std::fmt::Write;

/// An answer.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Number of choices.
    pub(crate) choices: u32,
    /// Log probabilities of the answer's tokens.
    pub(crate) logprobs: bool,
    /// Usage at the end of the stream.
    pub(crate) usage: bool,
    steps: Vec<Step>,
}

enum Step {
    Deltas(usize, Vec<Delta>, Vec<TokenInfo>),
    Finish(usize, FinishReason),
    Error,
}

/// All shapes.
pub(crate) fn all() -> Vec<Scenario> {
    let stop = || FinishReason::Stop { sequence: None };
    let one = |name, steps| Scenario { name, choices: 1, logprobs: false, usage: false, steps };
    let weather = |call, id: &str| Delta::CallStart { call, id: id.into(), name: "weather".into() };
    vec![
        one("text", vec![text(0, "Hé"), text(0, "l\"lo\n"), Step::Finish(0, stop())]),
        one("empty", vec![Step::Finish(0, stop())]),
        one(
            "reasoning",
            vec![
                step(vec![Delta::Reasoning("Let me ".into())]),
                step(vec![Delta::Reasoning("think".into()), Delta::Content("4".into())]),
                Step::Finish(0, stop()),
            ],
        ),
        one(
            "one tool",
            vec![
                text(0, "I look."),
                step(vec![weather(0, "call_a")]),
                step(vec![arguments(0, "{\"city\":")]),
                step(vec![arguments(0, " \"Bern\"}")]),
                Step::Finish(0, FinishReason::ToolCalls),
            ],
        ),
        one(
            "two tools",
            vec![
                step(vec![weather(0, "call_a"), arguments(0, "{\"city\": \"Bern\"}"), weather(1, "call_b")]),
                step(vec![arguments(1, "{\"city\": \"Genf\"}")]),
                Step::Finish(0, FinishReason::ToolCalls),
            ],
        ),
        one(
            "tool without arguments",
            vec![step(vec![weather(0, "call_a"), arguments(0, "{}")]), Step::Finish(0, FinishReason::ToolCalls)],
        ),
        one(
            "reasoning, text, tool",
            vec![
                step(vec![Delta::Reasoning("Hm".into()), Delta::Content("So".into()), weather(0, "call_a")]),
                step(vec![arguments(0, "{}")]),
                Step::Finish(0, FinishReason::ToolCalls),
            ],
        ),
        one("length", vec![text(0, "Once upon"), Step::Finish(0, FinishReason::Length)]),
        one("stop string", vec![text(0, "1, 2"), Step::Finish(0, FinishReason::Stop { sequence: Some("END".into()) })]),
        one("filtered", vec![text(0, "I"), Step::Finish(0, FinishReason::ContentFilter)]),
        one("error", vec![text(0, "Hel"), Step::Error]),
        Scenario { usage: true, ..one("usage", vec![text(0, "Hi"), Step::Finish(0, stop())]) },
        Scenario {
            choices: 2,
            usage: true,
            ..one(
                "two choices",
                vec![text(1, "b"), text(0, "a"), Step::Finish(1, stop()), Step::Finish(0, FinishReason::Length)],
            )
        },
        Scenario {
            logprobs: true,
            ..one(
                "logprobs",
                vec![
                    Step::Deltas(0, vec![Delta::Content("Hi".into())], vec![token("Hi", Some(-0.25))]),
                    Step::Deltas(0, vec![Delta::Content(" é".into())], vec![token(" ", None), token("é", Some(-1.5))]),
                    Step::Deltas(0, vec![], vec![token("!", Some(-2.0))]),
                    Step::Finish(0, stop()),
                ],
            )
        },
    ]
}

fn step(deltas: Vec<Delta>) -> Step {
    Step::Deltas(0, deltas, vec![])
}

fn text(choice: usize, text: &str) -> Step {
    Step::Deltas(choice, vec![Delta::Content(text.into())], vec![])
}

fn arguments(call: usize, text: &str) -> Delta {
    Delta::CallArguments { call, text: text.into() }
}

fn token(text: &str, logprob: Option<f32>) -> TokenInfo {
    let top = vec![Alternative { text: "Ho".into(), bytes: None, logprob: -3.5 }];
    TokenInfo {
        text: text.into(),
        bytes: None,
        id: Some(7),
        logprob,
        top: if logprob.is_some() { top } else { vec![] },
    }
}

fn usage() -> Usage {
    Usage { prompt_tokens: 12, completion_tokens: 5, cached_tokens: 8, reasoning_tokens: 2 }
}

impl Scenario {
    /// The whole stream.
    pub(crate) fn stream(&self, encoder: &mut dyn ResponseEncoder) -> String {
        let mut out = BytesMut::new();
        encoder.start(&mut out);
        for step in &self.steps {
            match step {
                Step::Deltas(choice, deltas, tokens) => encoder.deltas(*choice, deltas, tokens, &mut out),
                Step::Finish(choice, reason) => {
                    encoder.finish(*choice, &Finish { reason: reason.clone(), usage: usage() }, &mut out);
                }
                Step::Error => {
                    let failure = Failure::Handler { status: 502, message: "the model's instance \"died\"".to_owned() };
                    encoder.error(&StreamFailure { failure: &failure, request_id: Some("req_1") }, &mut out);
                }
            }
        }
        if !self.fails() {
            encoder.end(&usage(), &mut out);
        }
        String::from_utf8(out.to_vec()).unwrap()
    }

    /// The whole answer of a request that does not stream.
    pub(crate) fn whole(&self, encoder: &mut dyn ResponseEncoder) -> String {
        let mut out = BytesMut::new();
        encoder.whole(&self.completion(), &mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    /// Returns true if the stream ends with an error.
    pub(crate) fn fails(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Error))
    }

    fn completion(&self) -> Completion {
        let mut choices = vec![Choice::default(); self.choices as usize];
        for step in &self.steps {
            match step {
                Step::Deltas(choice, deltas, tokens) => choices[*choice].extend(deltas, tokens),
                Step::Finish(choice, reason) => {
                    choices[*choice].finish = Some(Finish { reason: reason.clone(), usage: usage() });
                }
                Step::Error => {}
            }
        }
        Completion { choices, usage: usage() }
    }
}

/// Streams of all shapes below their names.
pub(crate) fn streams<E: ResponseEncoder>(make: impl Fn(&Scenario) -> E) -> String {
    rendered(&all(), |scenario| scenario.stream(&mut make(scenario)))
}

/// Whole answers of all shapes below their names, without the one that fails.
pub(crate) fn answers<E: ResponseEncoder>(make: impl Fn(&Scenario) -> E) -> String {
    let scenarios: Vec<_> = all().into_iter().filter(|scenario| !scenario.fails()).collect();
    rendered(&scenarios, |scenario| scenario.whole(&mut make(scenario)) + "\n")
}

fn rendered(scenarios: &[Scenario], render: impl Fn(&Scenario) -> String) -> String {
    let mut text = String::new();
    for scenario in scenarios {
        writeln!(text, "## {}\n{}", scenario.name, render(scenario).trim_end_matches('\n')).unwrap();
    }
    text
}
