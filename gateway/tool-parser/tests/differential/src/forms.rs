//! Forms of calls and of reasoning, written as the templates of their models print them.

use crate::random::Random;
use crate::write::{self, Style};
use omni_tool_parser::{Dialect, ReasoningFormat};
use serde_json::{Map, Value, json};

/// A form, and the names of the parsers of others that read it.
pub(crate) struct Form {
    pub(crate) name: &'static str,
    pub(crate) dialect: Dialect,
    pub(crate) reasoning: Option<ReasoningFormat>,
    /// Text before, between and behind calls.
    pub(crate) prose: Prose,
    /// Calls of SMG, and its reasoning.
    pub(crate) smg: [Option<&'static str>; 2],
    /// Calls of Dynamo, and its reasoning.
    pub(crate) dynamo: [Option<&'static str>; 2],
}

/// Places of text beside calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Prose {
    None,
    Before,
    Around,
    Between,
}

/// Call of a function.
pub(crate) type Call = (String, Map<String, Value>);

const fn form(name: &'static str, dialect: Dialect, prose: Prose, smg: &'static str, dynamo: &'static str) -> Form {
    Form { name, dialect, reasoning: None, prose, smg: [Some(smg), None], dynamo: [Some(dynamo), None] }
}

const fn thinks(form: Form, smg: &'static str, dynamo: &'static str) -> Form {
    let ([smg_calls, _], [dynamo_calls, _]) = (form.smg, form.dynamo);
    Form {
        reasoning: Some(ReasoningFormat::Think),
        smg: [smg_calls, Some(smg)],
        dynamo: [dynamo_calls, Some(dynamo)],
        ..form
    }
}

const fn reasons(
    name: &'static str,
    format: ReasoningFormat,
    smg: Option<&'static str>,
    dynamo: Option<&'static str>,
) -> Form {
    Form {
        name,
        dialect: Dialect::None,
        reasoning: Some(format),
        prose: Prose::Around,
        smg: [None, smg],
        dynamo: [None, dynamo],
    }
}

pub(crate) const FORMS: &[Form] = &[
    thinks(form("hermes", Dialect::Hermes, Prose::Between, "qwen", "hermes"), "qwen3", "qwen3"),
    thinks(form("qwen3-coder", Dialect::Qwen3Coder, Prose::Between, "qwen_coder", "qwen3_coder"), "qwen3", "qwen3"),
    form("llama-3", Dialect::Llama3, Prose::Before, "llama", "llama3_json"),
    form("llama-3 bare", Dialect::Llama3, Prose::None, "llama", "llama3_json"),
    form("llama-4", Dialect::Pythonic, Prose::None, "pythonic", "pythonic"),
    form("mistral old", Dialect::Mistral, Prose::Before, "mistral", "mistral"),
    thinks(form("deepseek-v3", Dialect::DeepSeekV3, Prose::Before, "deepseek", "deepseek_v3"), "qwen3", "qwen3"),
    thinks(form("deepseek-v3.1", Dialect::DeepSeekV3, Prose::Before, "deepseek31", "deepseek_v3_1"), "qwen3", "qwen3"),
    thinks(form("deepseek-v3.2", Dialect::DeepSeekV32, Prose::Before, "deepseek32", "deepseek_v3_2"), "qwen3", "qwen3"),
    thinks(
        form("deepseek-v4", Dialect::DeepSeekV32, Prose::Before, "deepseek_v4", "deepseek_v4"),
        "deepseek_v4",
        "deepseek_v4",
    ),
    thinks(form("kimi-k2", Dialect::KimiK2, Prose::Before, "kimik2", "kimi_k2"), "qwen3", "qwen3"),
    thinks(form("glm-4.5", Dialect::Glm, Prose::Between, "glm45_moe", "glm47"), "glm45", "glm45"),
    thinks(form("glm-4.7", Dialect::Glm, Prose::Between, "glm47_moe", "glm47"), "glm45", "glm45"),
    thinks(form("minimax-m2", Dialect::MiniMax, Prose::Before, "minimax_m2", "minimax_m2"), "qwen3", "qwen3"),
    Form {
        reasoning: Some(ReasoningFormat::Channel),
        smg: [Some("gemma4"), Some("gemma4")],
        dynamo: [Some("gemma4"), Some("gemma4")],
        ..form("gemma-4", Dialect::Gemma, Prose::Around, "", "")
    },
    Form {
        smg: [None, None],
        dynamo: [Some("harmony"), Some("gpt_oss")],
        ..form("gpt-oss", Dialect::Harmony, Prose::Before, "", "")
    },
    form("json", Dialect::Json, Prose::None, "json", "default"),
    reasons("think", ReasoningFormat::Think, Some("qwen3"), Some("qwen3")),
    reasons("brackets", ReasoningFormat::Brackets, None, Some("mistral")),
    reasons("command", ReasoningFormat::Command, Some("cohere_cmd"), None),
    reasons("channel", ReasoningFormat::Channel, Some("gemma4"), Some("gemma4")),
    reasons("granite", ReasoningFormat::Granite, None, Some("granite")),
    reasons("triangles", ReasoningFormat::Triangles, Some("kimi"), Some("kimi")),
];

impl Form {
    /// Reasoning as the model writes it. `open`: the prompt has its beginning.
    pub(crate) fn reasoning(&self, text: &str, open: bool) -> String {
        let Some(format) = self.reasoning else {
            return format!("<|channel|>analysis<|message|>{text}<|end|><|start|>assistant");
        };
        let [before, after] = match format {
            ReasoningFormat::Think => ["<think>\n", "\n</think>\n\n"],
            ReasoningFormat::Brackets => ["[THINK]", "[/THINK]"],
            ReasoningFormat::Command => ["<|START_THINKING|>", "<|END_THINKING|>"],
            ReasoningFormat::Channel => ["<|channel>thought\n", "\n<channel|>"],
            ReasoningFormat::Granite => ["Here is my thought process: ", "\n\nHere is my response: "],
            ReasoningFormat::Triangles => ["◁think▷", "◁/think▷"],
            _ => ["", ""],
        };
        format!("{}{text}{after}", if open { "" } else { before })
    }

    /// Text of the answer, as it stands before calls or alone.
    pub(crate) fn text(&self, text: &str, calls: bool) -> String {
        match (self.dialect, calls) {
            (Dialect::Harmony, true) => format!("<|channel|>commentary<|message|>{text}<|end|><|start|>assistant"),
            (Dialect::Harmony, false) => format!("<|channel|>final<|message|>{text}<|return|>"),
            (_, true) => format!("{text}\n\n"),
            (_, false) => text.to_owned(),
        }
    }

    /// Calls, with a text between the first two if there is one.
    pub(crate) fn calls(&self, calls: &[Call], between: Option<&str>, random: &mut Random) -> String {
        let style = Style::random(random);
        let written = calls.iter().enumerate().map(|(at, call)| self.call(at, call, style));
        let written: Vec<String> = written.collect();
        let (before, mut separator, after) = match self.name {
            "hermes" | "qwen3-coder" | "glm-4.5" | "glm-4.7" => ("", "\n", ""),
            "llama-3" => ("<|python_tag|>", "; ", ""),
            "llama-3 bare" => ("", ";", ""),
            "llama-4" => ("[", ", ", "]"),
            "mistral old" => ("[TOOL_CALLS] [", ", ", "]"),
            "deepseek-v3" => ("<｜tool▁calls▁begin｜>", "\n", "<｜tool▁calls▁end｜>"),
            "deepseek-v3.1" => ("<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>"),
            "deepseek-v3.2" => ("<｜DSML｜function_calls>\n", "\n", "\n</｜DSML｜function_calls>"),
            "deepseek-v4" => ("<｜DSML｜tool_calls>\n", "\n", "\n</｜DSML｜tool_calls>"),
            "kimi-k2" => ("<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>"),
            "minimax-m2" => ("<minimax:tool_call>\n", "\n", "\n</minimax:tool_call>"),
            "gpt-oss" => ("", "<|start|>assistant", ""),
            "json" if calls.len() > 1 => ("[", ", ", "]"),
            _ => ("", "", ""),
        };
        let spaced = between.map(|text| format!("\n{text}\n"));
        separator = spaced.as_deref().unwrap_or(separator);
        format!("{before}{}{after}", written.join(separator))
    }

    fn call(&self, at: usize, (name, arguments): &Call, style: Style) -> String {
        let value = Value::Object(arguments.clone());
        let json = style.json(&value);
        let object =
            |key: &str| format!("{{{}: {}, {}: {json}}}", style.string("name"), style.string(name), style.string(key));
        match self.name {
            "hermes" => format!("<tool_call>\n{}\n</tool_call>", object("arguments")),
            "llama-3" | "llama-3 bare" => object("parameters"),
            "mistral old" | "json" => object("arguments"),
            "llama-4" => {
                let argument = |(key, value): (&String, &Value)| format!("{key}={}", write::python(value));
                format!("{name}({})", arguments.iter().map(argument).collect::<Vec<_>>().join(", "))
            }
            "deepseek-v3" => {
                format!("<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json}\n```<｜tool▁call▁end｜>")
            }
            "deepseek-v3.1" => format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json}<｜tool▁call▁end｜>"),
            "kimi-k2" => {
                format!("<|tool_call_begin|>functions.{name}:{at}<|tool_call_argument_begin|>{json}<|tool_call_end|>")
            }
            "gemma-4" => format!("<|tool_call>call:{name}{}<tool_call|>", write::gemma(&value)),
            "gpt-oss" => {
                format!("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{json}<|call|>")
            }
            _ => self.markup(name, arguments, style),
        }
    }

    /// Call whose parameters are in markup.
    fn markup(&self, name: &str, arguments: &Map<String, Value>, style: Style) -> String {
        let raw = |value: &Value| value.as_str().map_or_else(|| style.json(value), str::to_owned);
        let is_string = |value: &Value| if value.is_string() { "true" } else { "false" };
        let parameter = |(key, value): (&String, &Value)| match self.name {
            "qwen3-coder" => format!("<parameter={key}>\n{}\n</parameter>\n", raw(value)),
            "glm-4.5" => format!("<arg_key>{key}</arg_key>\n<arg_value>{}</arg_value>\n", raw(value)),
            "glm-4.7" => format!("<arg_key>{key}</arg_key><arg_value>{}</arg_value>", raw(value)),
            "minimax-m2" => format!("<parameter name=\"{key}\">{}</parameter>\n", raw(value)),
            _ => format!(
                "<｜DSML｜parameter name=\"{key}\" string=\"{}\">{}</｜DSML｜parameter>\n",
                is_string(value),
                raw(value)
            ),
        };
        let parameters: String = arguments.iter().map(parameter).collect();
        match self.name {
            "qwen3-coder" => format!("<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"),
            "glm-4.5" => format!("<tool_call>{name}\n{parameters}</tool_call>"),
            "glm-4.7" => format!("<tool_call>{name}{parameters}</tool_call>"),
            "minimax-m2" => format!("<invoke name=\"{name}\">\n{parameters}</invoke>"),
            _ => format!("<｜DSML｜invoke name=\"{name}\">\n{parameters}</｜DSML｜invoke>"),
        }
    }
}

/// Tools that every text is offered: name, and schema of the parameters.
pub(crate) fn tools() -> Vec<(&'static str, Value)> {
    vec![
        (
            "look_up",
            json!({"type": "object", "properties": {
                "text": {"type": "string"}, "count": {"type": "integer"}, "ratio": {"type": "number"},
                "flag": {"type": "boolean"}, "list": {"type": "array"}, "map": {"type": "object"}
            }}),
        ),
        ("ping", json!({"type": "object", "properties": {}})),
        (
            "write_file",
            json!({"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}}),
        ),
        // those of the vectors
        (
            "get_weather",
            json!({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}),
        ),
        ("get_time", json!({"type": "object", "properties": {}})),
        ("list-files", json!({"type": "object", "properties": {"path": {"type": "string"}}})),
    ]
}
