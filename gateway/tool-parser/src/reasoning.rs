//! Forms of reasoning before an answer.

/// Form of reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReasoningFormat {
    /// `<think>…</think>`: DeepSeek, Qwen, GLM, Kimi, MiniMax and most others.
    Think,
    /// `[THINK]…[/THINK]`: Magistral, Ministral.
    Brackets,
    /// `<seed:think>…</seed:think>`: Seed-OSS.
    Seed,
    /// `<|START_THINKING|>…<|END_THINKING|>`: Command R7B, Command A.
    Command,
    /// `<|channel>thought…<channel|>`: Gemma 4.
    Channel,
    /// `Here is my thought process:…Here is my response:`: Granite 3.2.
    Granite,
    /// `◁think▷…◁/think▷`: Kimi VL.
    Triangles,
    /// `<thought>…</thought>`: EXAONE Deep and others.
    Thought,
    /// `<|inner_prefix|>…<|inner_suffix|>`: Apertus.
    Inner,
    /// `Here are my reasoning steps:…[BEGIN FINAL RESPONSE]`: Apriel.
    Steps,
}

impl ReasoningFormat {
    /// All formats with their names in a manifest.
    pub const ALL: [(&'static str, Self); 10] = [
        ("think", Self::Think),
        ("brackets", Self::Brackets),
        ("seed", Self::Seed),
        ("command", Self::Command),
        ("channel", Self::Channel),
        ("granite", Self::Granite),
        ("triangles", Self::Triangles),
        ("thought", Self::Thought),
        ("inner", Self::Inner),
        ("steps", Self::Steps),
    ];

    /// Format by its name in a manifest.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
    }

    /// Guesses the format from a chat template; `None`: the model does not reason, or gpt-oss, whose dialect knows it.
    #[must_use]
    pub fn of_template(source: &str) -> Option<Self> {
        const MARKS: [(&str, ReasoningFormat); 10] = [
            ("<seed:think>", ReasoningFormat::Seed),
            ("[/THINK]", ReasoningFormat::Brackets),
            ("<|END_THINKING|>", ReasoningFormat::Command),
            ("<|channel>thought", ReasoningFormat::Channel),
            ("Here is my thought process:", ReasoningFormat::Granite),
            ("◁/think▷", ReasoningFormat::Triangles),
            ("<|inner_prefix|>", ReasoningFormat::Inner),
            ("[BEGIN FINAL RESPONSE]", ReasoningFormat::Steps),
            ("</think>", ReasoningFormat::Think),
            ("</thought>", ReasoningFormat::Thought),
        ];
        MARKS.iter().find(|(mark, _)| source.contains(mark)).map(|(_, format)| *format)
    }

    /// Returns true if a rendered prompt ends inside of reasoning, which its last turn opens. Decided from the end of the prompt
    /// alone: earlier turns hold reasoning of their own (vllm#32490).
    #[must_use]
    pub fn is_open(self, prompt: &str) -> bool {
        let prompt = prompt.trim_end();
        self.opens().iter().any(|open| prompt.ends_with(open.trim_end()))
    }

    /// Finds the format inside of whose reasoning a rendered prompt ends.
    #[must_use]
    pub fn open_in(prompt: &str) -> Option<Self> {
        Self::ALL.iter().map(|(_, format)| *format).find(|format| format.is_open(prompt))
    }

    pub(crate) fn opens(self) -> &'static [&'static str] {
        match self {
            Self::Think => &["<think>"],
            Self::Brackets => &["[THINK]"],
            Self::Seed => &["<seed:think>"],
            Self::Command => &["<|START_THINKING|>"],
            Self::Channel => &["<|channel>thought"],
            Self::Granite => &["Here is my thought process:", "Here's my thought process:"],
            Self::Triangles => &["◁think▷"],
            Self::Thought => &["<thought>"],
            Self::Inner => &["<|inner_prefix|>"],
            Self::Steps => &["Here are my reasoning steps:"],
        }
    }

    /// Marks that end the reasoning, the usual one first.
    #[must_use]
    pub fn closes(self) -> &'static [&'static str] {
        match self {
            Self::Think => &["</think>"],
            Self::Brackets => &["[/THINK]"],
            Self::Seed => &["</seed:think>"],
            Self::Command => &["<|END_THINKING|>"],
            Self::Channel => &["<channel|>"],
            Self::Granite => &["Here is my response:", "Here's my response:"],
            Self::Triangles => &["◁/think▷"],
            Self::Thought => &["</thought>"],
            Self::Inner => &["<|inner_suffix|>"],
            Self::Steps => &["[BEGIN FINAL RESPONSE]"],
        }
    }

    /// Marks around the text of the answer, and in it.
    pub(crate) fn wraps(self) -> &'static [&'static str] {
        match self {
            Self::Command => &["<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"],
            Self::Steps => &["[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]"],
            Self::Channel => &["<|channel>thought", "<|channel>", "<channel|>"],
            Self::Think
            | Self::Brackets
            | Self::Seed
            | Self::Granite
            | Self::Triangles
            | Self::Thought
            | Self::Inner => &[],
        }
    }
}
