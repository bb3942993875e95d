//! Texts: answers in a form with awkward arguments, whole, cut off or broken.

use crate::answer::Answer;
use crate::forms::{Call, FORMS, Form, Prose};
use crate::random::Random;
use omni_tool_parser::Dialect;
use serde_json::{Map, Value, json};

/// Kinds of texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// As a template prints it.
    Plain,
    /// The same with marks inside of values and text.
    Marks,
    /// Cut off.
    Cut,
    /// With a part missing, doubled or put in.
    Broken,
    /// Vectors of our own tests.
    Vectors,
}

/// Kinds of texts that are made.
pub(crate) const KINDS: [Kind; 4] = [Kind::Plain, Kind::Marks, Kind::Cut, Kind::Broken];

/// Ways in which a text comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    /// All at once.
    Whole,
    /// In pieces, marks whole.
    Tokens,
    /// In pieces.
    Pieces,
}

pub(crate) const MODES: [Mode; 3] = [Mode::Whole, Mode::Tokens, Mode::Pieces];

/// A text.
pub(crate) struct Text {
    pub(crate) kind: Kind,
    pub(crate) text: String,
    /// The prompt has the beginning of the reasoning.
    pub(crate) open: bool,
    /// Answer that was written as this text, or whose beginning was.
    pub(crate) meant: Option<Answer>,
}

const STRINGS: &[&str] = &[
    "Paris",
    "",
    " ",
    "  two  spaces ",
    "New York, NY",
    "Zürich — 東京 🎉 e\u{301}",
    "she said \"hi\" and 'bye'",
    "it's",
    "C:\\new\\table",
    "first\nsecond\n\n\tthird",
    "line\n",
    "\nline",
    "03106",
    "42",
    "4.50",
    "true",
    "null",
    "None",
    "2026-01-15",
    "a; b, c] d} e) f: g",
    "x = [1, 2]; y = {'a': (3,)}",
    "a &amp; b &lt;c&gt; %20 \\u0041 ${x}",
    "1 < 2 > 0",
    "{\"name\": \"ping\", \"arguments\": {}}",
    "[1, 2]",
    "```json\n{}\n```",
    "fn main() { println!(\"{}\", 1); }\n",
];

/// Marks of all forms. The beginning of a parameter is left out: with an end in a later call it makes a pair, and both
/// readings parse.
const MARKS: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<function=ping>",
    "</function>",
    "</parameter>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜DSML｜function_calls>",
    "</｜DSML｜parameter>",
    "</｜DSML｜invoke>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_end|>",
    "<arg_key>",
    "</arg_key>",
    "</arg_value>",
    "<minimax:tool_call>",
    "<invoke name=\"ping\">",
    "</invoke>",
    "<tool_call|>",
    "<channel|>",
    "<|im_end|>",
    "</s>",
    "<b>bold</b>",
    "<!-- x -->",
    "<tool_",
    "</para",
];

const PROSE: &[&str] = &["I look it up.", "Let me see: 1 < 2, isn't it?", "Ok — gleich! 東京", "First, \"this\"."];

impl Text {
    pub(crate) fn new(form: &Form, kind: Kind, random: &mut Random) -> Self {
        let text = Self::whole(form, kind == Kind::Marks, random);
        match kind {
            Kind::Plain | Kind::Marks => text,
            Kind::Cut => {
                let at = random.place(&text.text);
                Self { kind, text: text.text[..at].to_owned(), ..text }
            }
            Kind::Broken | Kind::Vectors => {
                Self { kind, text: broken(form, text.text, random), meant: None, open: text.open }
            }
        }
    }

    /// A text without what was meant.
    pub(crate) fn vector(text: &str) -> Self {
        Self { kind: Kind::Vectors, text: text.to_owned(), open: false, meant: None }
    }

    fn whole(form: &Form, marks: bool, random: &mut Random) -> Self {
        let mut meant = Answer::default();
        let (mut text, mut open) = (String::new(), false);
        let can_reason = form.reasoning.is_some() || form.dialect == Dialect::Harmony;
        if can_reason && (form.dialect == Dialect::None || random.once_in(2)) {
            open = form.dialect != Dialect::Harmony && random.once_in(3);
            meant.reasoning = prose(marks && random.once_in(3), random);
            text.push_str(&form.reasoning(&meant.reasoning, open));
        }
        let count = if form.dialect == Dialect::None { 0 } else { [0, 1, 1, 1, 2, 2, 3][random.below(7)] };
        let count = if form.prose == Prose::None { count.max(1) } else { count };
        if (form.prose >= Prose::Before && random.once_in(2)) || count == 0 {
            let words = prose(marks && form.dialect != Dialect::Harmony && random.once_in(3), random);
            text.push_str(&form.text(&words, count > 0));
            meant.content.push_str(&words);
        }
        let calls: Vec<Call> = (0..count).map(|_| call(form, marks, random)).collect();
        let between = (form.prose == Prose::Between && count > 1 && random.once_in(4)).then(|| random.pick(PROSE));
        if !calls.is_empty() {
            text.push_str(&form.calls(&calls, between, random));
        }
        if let Some(between) = between {
            // The same text stands between all calls.
            meant.content.push_str(&between.repeat(count - 1));
        }
        if form.prose >= Prose::Around && count > 0 && random.once_in(4) {
            let words = random.pick(PROSE);
            text.push_str(&format!("\n{words}"));
            meant.content.push_str(words);
        }
        meant.calls = calls.into_iter().map(|(name, arguments)| (name, Value::Object(arguments).to_string())).collect();
        Self { kind: if marks { Kind::Marks } else { Kind::Plain }, text, open, meant: Some(meant) }
    }
}

fn prose(marks: bool, random: &mut Random) -> String {
    let words = random.pick(PROSE);
    if !marks {
        return words.to_owned();
    }
    // Marks that change what follows are none in prose: these are left out.
    let harmless = ["<tool_", "</para", "<b>bold</b>", "</parameter>", "</arg_value>", "<think", "a <tool_call> tag"];
    format!("{words} Use {} now.", random.pick(&harmless))
}

fn call(form: &Form, marks: bool, random: &mut Random) -> Call {
    let mut arguments = Map::new();
    let names: &[&str] = if form.name == "llama-4" {
        &["look_up", "ping", "write_file"]
    } else {
        &["look_up", "look_up", "ping", "write_file", "list-files"]
    };
    let name = random.pick(names);
    let mut put = |key: &str, value: Value| arguments.insert(key.to_owned(), value);
    match name {
        "look_up" => {
            for key in ["text", "count", "ratio", "flag", "list", "map"] {
                if random.once_in(2) {
                    put(key, value(form, key, marks, random));
                }
            }
        }
        "write_file" => {
            put("path", json!("src/main.rs"));
            put("content", string(form, marks, random));
        }
        "list-files" => {
            put("path", string(form, marks, random));
        }
        _ => {}
    }
    (name.to_owned(), arguments)
}

fn value(form: &Form, key: &str, marks: bool, random: &mut Random) -> Value {
    match key {
        "text" => string(form, marks, random),
        "count" => json!([0, 1, -7, 42, 9_007_199_254_740_993_i64][random.below(5)]),
        "ratio" => json!([0.5, -1.25, 1e21, 3.0][random.below(4)]),
        "flag" => json!(random.once_in(2)),
        "list" => (0..random.below(4)).map(|_| string(form, marks, random)).collect(),
        _ => json!({"a": {"b": [1, null, true, {"c": string(form, marks, random)}]}, "d": {}, "e": []}),
    }
}

fn string(form: &Form, marks: bool, random: &mut Random) -> Value {
    let plain = random.pick(STRINGS);
    if !marks || random.once_in(3) {
        return plain.into();
    }
    if random.once_in(4) && !matches!(form.dialect, Dialect::Gemma | Dialect::Harmony | Dialect::None) {
        // An example of a call inside of a file.
        let inner = Map::from_iter([("path".to_owned(), json!("a"))]);
        return form.calls(&[("write_file".to_owned(), inner)], None, &mut Random::new(1)).into();
    }
    format!("{plain} {} x", random.pick(MARKS)).into()
}

/// A text with one or two parts missing, doubled or put in.
fn broken(form: &Form, mut text: String, random: &mut Random) -> String {
    for _ in 0..=random.below(2) {
        let (from, to) = (random.place(&text), random.place(&text));
        let (from, to) = (from.min(to), from.max(to));
        match random.below(5) {
            0 => text.replace_range(from..to.min(text.ceil_char_boundary(from + 12)), ""),
            1 => {
                let part = text[from..to.min(text.ceil_char_boundary(from + 30))].to_owned();
                text.insert_str(from, &part);
            }
            2 => text.insert_str(from, random.pick(MARKS)),
            3 => text.insert_str(from, random.pick(&["\"", "\\", "}", "{", "\n", "]", "<", "'"])),
            _ => {
                let other = &FORMS[random.below(FORMS.len())];
                if other.dialect != Dialect::None {
                    text.insert_str(from, &other.calls(&[call(form, false, random)], None, random));
                }
            }
        }
    }
    text
}
