//! Cost of parsing: a megabyte of arguments in each dialect (and ten, for linear time), and a piece of text.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use omni_generation::{Delta, Tool};
use omni_tool_parser::{CompiledTools, Dialect, Parser, ParserOptions, ReasoningFormat};
use serde_json::value::RawValue;
use std::hint::black_box;
use std::sync::Arc;

/// Length of a token of common models, in bytes.
const PIECE: usize = 4;

fn options() -> ParserOptions {
    let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap_or_default();
    let parameters = raw(r#"{"type": "object", "properties": {"content": {"type": "string"}}}"#);
    let tool = Tool { name: "write_file".to_owned(), parameters: Some(parameters), definition: raw("{}") };
    let tools = Arc::new(CompiledTools::new(&[tool]));
    ParserOptions { tools, reasoning: Some(ReasoningFormat::Think), ..ParserOptions::default() }
}

/// Answer with one call whose argument has `length` bytes, many of them the beginnings of marks.
fn answer(dialect: Dialect, length: usize) -> Option<String> {
    let line = "if a < b { call(x)[0] } </parameter> </arg_value> </param <tool_call ";
    let value = line.repeat(length / line.len());
    let json = format!("{{\"content\": \"{value}\"}}");
    Some(match dialect {
        Dialect::Hermes => format!("<tool_call>{{\"name\": \"write_file\", \"arguments\": {json}}}</tool_call>"),
        Dialect::Qwen3Coder => {
            format!("<tool_call><function=write_file><parameter=content>{value}</parameter></function></tool_call>")
        }
        Dialect::Llama3 => format!("<|python_tag|>{{\"name\": \"write_file\", \"parameters\": {json}}}"),
        Dialect::Pythonic => format!("[write_file(content=\"{value}\")]"),
        Dialect::Mistral => format!("[TOOL_CALLS]write_file[ARGS]{json}"),
        Dialect::DeepSeekV3 => {
            format!("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>write_file<｜tool▁sep｜>{json}<｜tool▁call▁end｜>")
        }
        Dialect::DeepSeekV32 => format!(
            "<｜DSML｜invoke name=\"write_file\"><｜DSML｜parameter name=\"content\" string=\"true\">{value}</｜DSML｜parameter></｜DSML｜invoke>"
        ),
        Dialect::KimiK2 => {
            format!("<|tool_call_begin|>functions.write_file:0<|tool_call_argument_begin|>{json}<|tool_call_end|>")
        }
        Dialect::Glm => {
            format!("<tool_call>write_file<arg_key>content</arg_key><arg_value>{value}</arg_value></tool_call>")
        }
        Dialect::MiniMax => format!(
            "<minimax:tool_call><invoke name=\"write_file\"><parameter name=\"content\">{value}</parameter></invoke></minimax:tool_call>"
        ),
        Dialect::Gemma => format!("<|tool_call>call:write_file{{content:<|\"|>{value}<|\"|>}}<tool_call|>"),
        Dialect::Harmony => format!("<|channel|>commentary to=functions.write_file<|message|>{json}<|call|>"),
        Dialect::Json => format!("{{\"name\": \"write_file\", \"arguments\": {json}}}"),
        Dialect::None => return None,
    })
}

fn pieces(text: &str) -> Vec<&str> {
    let mut rest = text;
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.ceil_char_boundary(PIECE));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

/// Parses pieces. Returns the number of calls.
fn parse(dialect: Dialect, options: &ParserOptions, pieces: &[&str], out: &mut Vec<Delta>) -> usize {
    let mut parser = Parser::new(dialect, options.clone());
    for piece in pieces {
        out.clear();
        parser.push(piece, out);
        black_box(&out);
    }
    parser.finish(out).calls
}

fn arguments(criterion: &mut Criterion) {
    let options = options();
    for length in [1 << 20, 10 << 20] {
        let mut group = criterion.benchmark_group(format!("arguments of {} MiB", length >> 20));
        group.sample_size(10).throughput(Throughput::Bytes(length as u64));
        for (name, dialect) in Dialect::ALL {
            let Some(text) = answer(dialect, length) else { continue };
            // Calls that are held as a whole are held only up to a limit.
            if length > 1 << 20 && matches!(dialect, Dialect::Gemma | Dialect::Json | Dialect::Pythonic) {
                continue;
            }
            let pieces = pieces(&text);
            let mut out = Vec::new();
            assert_eq!(parse(dialect, &options, &pieces, &mut out), 1, "{name}");
            group.bench_function(name, |bencher| bencher.iter(|| parse(dialect, &options, &pieces, &mut out)));
        }
        group.finish();
    }
}

fn text(criterion: &mut Criterion) {
    let text = "The quick brown fox jumps over the lazy dog, and a < b. ".repeat(1000);
    let pieces = pieces(&text);
    let mut group = criterion.benchmark_group("piece of text");
    group.throughput(Throughput::Elements(pieces.len() as u64));
    let plain = ParserOptions::default();
    let thinks = ParserOptions { reasoning: Some(ReasoningFormat::Think), ..ParserOptions::default() };
    let mut out = Vec::new();
    for (name, dialect, options) in [
        ("no tools, no reasoning", Dialect::Hermes, plain),
        ("no tools", Dialect::Hermes, thinks),
        ("tools", Dialect::Hermes, options()),
        ("gpt-oss", Dialect::Harmony, options()),
    ] {
        group.bench_function(name, |bencher| bencher.iter(|| parse(dialect, &options, &pieces, &mut out)));
    }
    group.finish();
}

criterion_group!(benches, arguments, text);
criterion_main!(benches);
