//! Tests of whole answers.

mod differences;
mod properties;
mod reasoning;
mod reports;
mod vectors;

use super::*;
use omni_generation::{Choice, Tool};
use serde_json::Value;
use serde_json::value::RawValue;

/// Tools that most tests offer.
const TOOLS: &[(&str, &str)] = &[
    ("get_weather", r#"{"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}"#),
    ("get_time", r#"{"type": "object", "properties": {}}"#),
    ("write_file", r#"{"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}}"#),
    (
        "types",
        r##"{"type": "object", "properties": {
            "text": {"type": "string"}, "whole": {"type": "integer"}, "real": {"type": "number"}, "flag": {"type": "boolean"},
            "list": {"type": "array"}, "map": {"type": "object"}, "any": {}, "maybe": {"type": ["boolean", "null"]},
            "union": {"anyOf": [{"type": "object"}, {"type": "string"}]}, "choice": {"enum": ["1", "2"]},
            "optional": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "reference": {"$ref": "#/$defs/point"}
        }, "$defs": {"point": {"type": "object"}}}"##,
    ),
];

/// An answer, all of it.
#[derive(Debug, Clone, PartialEq)]
struct Answer {
    choice: Choice,
    outcome: Outcome,
}

fn compiled(tools: &[(&str, &str)]) -> Arc<CompiledTools> {
    let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
    let tool = |(name, parameters): &(&str, &str)| Tool {
        name: (*name).to_owned(),
        parameters: Some(raw(parameters)),
        definition: raw("{}"),
    };
    Arc::new(CompiledTools::new(&tools.iter().map(tool).collect::<Vec<_>>()))
}

fn options() -> ParserOptions {
    ParserOptions {
        tools: compiled(TOOLS),
        reasoning: Some(ReasoningFormat::Think),
        id_seed: 7,
        ..ParserOptions::default()
    }
}

/// Runs pieces through a parser, and checks that all of the text is accounted for.
fn run(dialect: Dialect, options: &ParserOptions, pieces: &[&str]) -> Answer {
    let mut parser = Parser::new(dialect, options.clone());
    let mut choice = Choice::default();
    for piece in pieces {
        let mut out = Vec::new();
        parser.push(piece, &mut out);
        assert_numbers(&out, choice.calls.len());
        choice.extend(&out, &[]);
    }
    let mut out = Vec::new();
    let outcome = parser.finish(&mut out);
    assert_numbers(&out, choice.calls.len());
    choice.extend(&out, &[]);
    assert_eq!(outcome.calls, choice.calls.len());
    if dialect != Dialect::None || options.reasoning.is_some() {
        assert_conserved(&parser, &pieces.concat(), &choice);
    }
    Answer { choice, outcome }
}

/// Calls are numbered from 0 and do not overlap.
fn assert_numbers(out: &[Delta], mut begun: usize) {
    for delta in out {
        match delta {
            Delta::CallStart { call, .. } => {
                assert_eq!(*call, begun);
                begun += 1;
            }
            Delta::CallArguments { call, .. } => assert_eq!(*call + 1, begun),
            Delta::Content(text) | Delta::Reasoning(text) => assert!(!text.is_empty()),
        }
    }
}

/// Bytes in are bytes in content, reasoning, arguments, calls and marks.
fn assert_conserved(parser: &Parser, text: &str, choice: &Choice) {
    let of = |used: Use| -> String {
        parser.input.ledger.iter().filter(|(kind, _)| *kind == used).map(|(_, text)| text.as_str()).collect()
    };
    let all: String = parser.input.ledger.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(all, text, "every byte leaves once");
    assert_eq!(of(Use::Content), choice.content);
    assert_eq!(of(Use::Reasoning), choice.reasoning);
    assert!(parser.outcome.dropped || of(Use::Dropped).is_empty());
    for (used, text) in &parser.input.ledger {
        if *used == Use::Marker {
            assert!(is_mark(text, choice), "{text:?} is no mark");
        }
    }
}

/// Marks are white space, punctuation with names in it, and nothing of the answer's own text.
fn is_mark(text: &str, choice: &Choice) -> bool {
    let text = text.trim();
    let names = choice.calls.iter().any(|call| text.contains(&call.name));
    let begins = text.starts_with(|c: char| "<[{}],;`◁\"".contains(c)) || text.starts_with("to=") || text == "null";
    let prose = text.starts_with("Here") && text.ends_with(':');
    text.is_empty() || names || begins || prose
}

fn whole(dialect: Dialect, text: &str) -> Answer {
    run(dialect, &options(), &[text])
}

/// Name and arguments of each call.
fn calls(answer: &Answer) -> Vec<(&str, &str)> {
    answer.choice.calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect()
}

/// Arguments as JSON.
fn json(answer: &Answer, call: usize) -> Value {
    let arguments = &answer.choice.calls[call].arguments;
    serde_json::from_str(arguments).unwrap_or_else(|error| panic!("{arguments}: {error}"))
}
