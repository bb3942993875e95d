//! Answers of models with tool calls and reasoning: the parts of an answer do not depend on how its text is cut, and nothing of the
//! text is lost or made up.

use omni_generation::{Choice, Tool};
use omni_tool_parser::{CompiledTools, Dialect, Outcome, Parser, ParserOptions, ReasoningFormat};
use serde_json::value::RawValue;
use std::sync::Arc;

/// Parses an answer. The first three bytes say the dialect, the options and the length of pieces.
///
/// # Panics
///
/// Pieces change the parts, content or reasoning is not from the text, or an answer without calls is not as long as its text.
pub fn holds(data: &[u8]) {
    let Some((&[dialect, choice, length], text)) = data.split_first_chunk() else { return };
    let text = String::from_utf8_lossy(text);
    let pick = |count: usize, byte: u8| usize::from(byte) % count;
    let (_, dialect) = Dialect::ALL[pick(Dialect::ALL.len(), dialect)];
    let formats = ReasoningFormat::ALL.len();
    let reasoning = ReasoningFormat::ALL.get(pick(formats + 1, choice / 4)).map(|(_, format)| *format);
    let options = ParserOptions {
        tools: tools(),
        parallel_tool_calls: choice & 1 == 0,
        starts_in_reasoning: choice & 2 != 0 && reasoning.is_some(),
        reasoning,
        ..ParserOptions::default()
    };
    let (whole, outcome) = parse(dialect, &options, &text, text.len());
    for length in [1, usize::from(length)] {
        assert_eq!(parse(dialect, &options, &text, length), (whole.clone(), outcome), "pieces of {length} bytes");
    }
    assert!(is_part(&whole.content, &text) && is_part(&whole.reasoning, &text), "made up: {whole:?}");
    assert_eq!(outcome.calls, whole.calls.len());
    assert!(!outcome.dropped || outcome.calls == 1);
    if dialect == Dialect::None && reasoning.is_none() {
        assert_eq!(whole.content, text);
    }
}

fn tools() -> Arc<CompiledTools> {
    let raw = |text: &str| RawValue::from_string(text.to_owned()).expect("JSON");
    let tool = |name: &str, parameters: &str| Tool {
        name: name.to_owned(),
        parameters: Some(raw(parameters)),
        definition: raw("{}"),
    };
    Arc::new(CompiledTools::new(&[
        tool("f", r#"{"properties": {"a": {"type": "string"}, "b": {"type": ["integer", "null"]}, "c": {}}}"#),
        tool("g", "{}"),
    ]))
}

/// The answer in pieces of a length, at least a character each.
fn parse(dialect: Dialect, options: &ParserOptions, text: &str, length: usize) -> (Choice, Outcome) {
    let mut parser = Parser::new(dialect, options.clone());
    let mut out = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.ceil_char_boundary(length.max(1)));
        parser.push(piece, &mut out);
        rest = after;
    }
    let outcome = parser.finish(&mut out);
    let mut choice = Choice::default();
    choice.extend(&out, &[]);
    (choice, outcome)
}

/// Returns true if all characters of `part` are in `text`, in their order.
fn is_part(part: &str, text: &str) -> bool {
    let mut characters = text.chars();
    part.chars().all(|wanted| characters.any(|found| found == wanted))
}
