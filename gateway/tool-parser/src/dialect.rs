//! Dialects of tool calls.

use crate::grammar::{self, Grammar};
use crate::ids::IdForm;

/// Form in which a model writes tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// `<tool_call>{"name": …}</tool_call>`: Hermes, Qwen 2.5 and 3, Granite, Nemotron 2, Command R7B.
    Hermes,
    /// `<tool_call><function=f><parameter=p>…`: Qwen3-Coder, Qwen 3.5, MiMo, Nemotron 3, Seed-OSS.
    Qwen3Coder,
    /// `<|python_tag|>{"name": …}` or the object alone: Llama 3.
    Llama3,
    /// `[f(a=1)]`: Llama 4, LFM2, Olmo 3.
    Pythonic,
    /// `[TOOL_CALLS]…`: all versions of Mistral.
    Mistral,
    /// `<｜tool▁calls▁begin｜>…`: DeepSeek V3, R1 and V3.1.
    DeepSeekV3,
    /// DSML: DeepSeek V3.2.
    DeepSeekV32,
    /// `<|tool_calls_section_begin|>…`: Kimi K2.
    KimiK2,
    /// `<tool_call>f<arg_key>…`: GLM 4.5 and later.
    Glm,
    /// `<minimax:tool_call><invoke name="f">…`: MiniMax M2.
    MiniMax,
    /// `<|tool_call>call:f{a:<|"|>x<|"|>}<tool_call|>`: Gemma 4, FunctionGemma.
    Gemma,
    /// Channels: gpt-oss.
    Harmony,
    /// The whole answer is a JSON object, or several.
    Json,
    /// No calls.
    None,
}

impl Dialect {
    /// All dialects with their names in a manifest.
    pub const ALL: [(&'static str, Self); 14] = [
        ("hermes", Self::Hermes),
        ("qwen3-coder", Self::Qwen3Coder),
        ("llama-3", Self::Llama3),
        ("pythonic", Self::Pythonic),
        ("mistral", Self::Mistral),
        ("deepseek-v3", Self::DeepSeekV3),
        ("deepseek-v3.2", Self::DeepSeekV32),
        ("kimi-k2", Self::KimiK2),
        ("glm-4.5", Self::Glm),
        ("minimax-m2", Self::MiniMax),
        ("gemma-4", Self::Gemma),
        ("gpt-oss", Self::Harmony),
        ("json", Self::Json),
        ("none", Self::None),
    ];

    /// Dialect by its name in a manifest.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, dialect)| *dialect)
    }

    /// Guesses the dialect from a chat template; `None`: the template prints no tools.
    #[must_use]
    pub fn of_template(source: &str) -> Option<Self> {
        let marks: [(&[&str], Self); 24] = [
            (&["<|channel|>", "<|message|>"], Self::Harmony),
            (&["｜DSML｜"], Self::DeepSeekV32),
            (&["<｜tool▁call"], Self::DeepSeekV3),
            (&["<|tool_call_begin|>"], Self::KimiK2),
            (&["<minimax:tool_call>"], Self::MiniMax),
            (&["<arg_key>"], Self::Glm),
            (&["<function=", "<parameter="], Self::Qwen3Coder),
            (&["[TOOL_CALLS]"], Self::Mistral),
            (&["<|tool_call>", "<tool_call|>"], Self::Gemma),
            (&["<start_function_call>"], Self::Gemma),
            (&["<|tool_call_start|>"], Self::Pythonic),
            (&["<|tool_list_start|>"], Self::Pythonic),
            (&["<functions>", "<function_calls>"], Self::Pythonic),
            (&["<|python_start|>"], Self::Pythonic),
            (&["<|header_start|>", "tools"], Self::Pythonic),
            (&["<tool_call>"], Self::Hermes),
            (&["<|tool_call|>"], Self::Hermes),
            (&["<tool_calls>"], Self::Hermes),
            (&["<TOOLCALL>"], Self::Hermes),
            (&["<longcat_tool_call>"], Self::Hermes),
            (&["<|tool|>"], Self::Hermes),
            (&["<|START_ACTION|>"], Self::Hermes),
            (&["<|start_header_id|>", "tools"], Self::Llama3),
            (&["tools"], Self::Json),
        ];
        marks.iter().find(|(marks, _)| marks.iter().all(|mark| source.contains(mark))).map(|(_, dialect)| *dialect)
    }

    pub(crate) fn grammar(self) -> Option<&'static Grammar> {
        Some(match self {
            Self::Hermes | Self::Qwen3Coder => &grammar::TAGGED,
            Self::Llama3 => &grammar::LLAMA3,
            Self::Pythonic => &grammar::PYTHON,
            Self::Mistral => &grammar::MISTRAL,
            Self::DeepSeekV3 => &grammar::DEEPSEEK,
            Self::DeepSeekV32 => &grammar::DSML,
            Self::KimiK2 => &grammar::KIMI,
            Self::Glm => &grammar::GLM,
            Self::MiniMax => &grammar::MINIMAX,
            Self::Gemma => &grammar::GEMMA,
            Self::Json => &grammar::JSON,
            Self::Harmony | Self::None => return None,
        })
    }

    pub(crate) fn ids(self) -> IdForm {
        self.grammar().map_or(IdForm::Call, |grammar| grammar.ids)
    }
}
