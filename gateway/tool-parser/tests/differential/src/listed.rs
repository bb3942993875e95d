//! Differences that are known, each with the reason why ours stands: the report whose input it is, or the template.

use crate::answer::Class::{self, *};
use crate::parsers::Other::{self, Dynamo, Smg};
use crate::texts::{
    Kind::{self, Broken, Cut, Marks, Vectors},
    Mode::{self, Pieces, Tokens, Whole},
};

/// Differences with the same reason. An empty list stands for all.
pub(crate) struct Listed {
    others: &'static [Other],
    forms: &'static [&'static str],
    kinds: &'static [Kind],
    modes: &'static [Mode],
    classes: &'static [Class],
    pub(crate) reason: &'static str,
}

/// Differences in texts that are as a template prints them; these are in the other kinds of texts as well.
const fn of_form(
    others: &'static [Other],
    forms: &'static [&'static str],
    modes: &'static [Mode],
    classes: &'static [Class],
    reason: &'static str,
) -> Listed {
    Listed { others, forms, kinds: &[], modes, classes, reason }
}

/// Differences in texts of a kind.
const fn of_kind(
    kind: &'static [Kind],
    forms: &'static [&'static str],
    classes: &'static [Class],
    reason: &'static str,
) -> Listed {
    Listed { others: &[], forms, kinds: kind, modes: &[], classes, reason }
}

pub(crate) const LISTED: &[Listed] = &[
    of_form(&[], &[], &[], &[Space], "white space beside a mark belongs to the mark; others hand it on"),
    of_form(
        &[],
        &["hermes", "qwen3-coder", "glm-4.5", "glm-4.7", "gemma-4", "mistral old", "llama-3"],
        &[],
        &[ContentLost],
        "text between calls, behind them or in one piece with them is dropped (llama.cpp#20729: text is never lost)",
    ),
    of_form(
        &[],
        &[],
        &[Pieces],
        &[Reasoning, CallsLost, Name, NoJson, ContentLost, ContentMore, MarksMore],
        "a mark that comes in several pieces is not found, or is text (vllm#57490, vllm#49205)",
    ),
    of_form(
        &[Smg],
        &["llama-3", "llama-3 bare"],
        &[Whole],
        &[CallsLost],
        "a semicolon in a string ends a call (sglang#23363: strings are respected)",
    ),
    of_form(
        &[Dynamo],
        &["llama-3", "llama-3 bare"],
        &[],
        &[CallsLost, ContentMore],
        "calls behind a semicolon are lost, or the semicolon is text (dynamo PR#9536)",
    ),
    of_form(
        &[Smg],
        &["llama-4"],
        &[Tokens],
        &[CallsLost],
        "a bracket in a string ends the list of calls (sglang#23363)",
    ),
    of_form(
        &[Smg],
        &["llama-4"],
        &[Tokens, Pieces],
        &[Error],
        "a panic: the bracket is looked for in bytes and in characters (llama.cpp#20729: never an error)",
    ),
    of_form(&[Dynamo], &["llama-4"], &[], &[ParametersLost], "a negative number is no literal: its parameter is lost"),
    of_form(
        &[Dynamo],
        &["llama-4"],
        &[],
        &[Error],
        "an error where the calls do not parse (llama.cpp#20729: never an error, it stays text)",
    ),
    of_form(
        &[Smg],
        &["deepseek-v3"],
        &[Tokens],
        &[NoJson, CallsLost, ContentMore],
        "the fence and the marks behind the arguments leave as arguments when they come in pieces",
    ),
    of_form(&[Dynamo], &["deepseek-v3"], &[], &[CallsLost], "a fence in a string ends the arguments (sglang#23363)"),
    of_form(
        &[Dynamo],
        &["qwen3-coder", "minimax-m2"],
        &[],
        &[Types, Value],
        "entities of HTML are decoded, a string \"null\" is null; the templates print strings as they are",
    ),
    of_form(
        &[Smg],
        &["minimax-m2"],
        &[],
        &[Value],
        "entities of HTML are decoded; the template prints strings as they are",
    ),
    of_form(
        &[],
        &["qwen3-coder", "deepseek-v3.2", "deepseek-v4", "minimax-m2"],
        &[],
        &[ValueSpace],
        "values are trimmed; the templates add a line break at each end (Qwen3-Coder) or nothing",
    ),
    of_form(
        &[Smg],
        &["kimi-k2"],
        &[],
        &[CallsLost, Name],
        "a name with a hyphen is none: the call is lost, or the next one takes its place (dynamo PR#4723)",
    ),
    of_form(
        &[Smg],
        &["hermes", "llama-3", "llama-3 bare", "mistral old", "json"],
        &[Tokens, Pieces],
        &[NoJson, CallsLost, ParametersLost, Types, ValueCut, Value],
        "in a stream an escape of two halves (\\ud83c\\udf89) or a separator in two pieces ends the arguments, and the calls behind",
    ),
    of_form(&[Smg], &["gemma-4"], &[], &[Types], "numbers, true and null in a list become strings"),
    of_form(&[Dynamo], &["gemma-4"], &[], &[ParametersLost], "a number with an exponent takes all parameters with it"),
    of_form(
        &[Dynamo],
        &["gemma-4", "channel", "granite"],
        &[],
        &[Reasoning],
        "reasoning that the prompt has opened is text: these parsers cannot be told (vllm-mlx PR#725)",
    ),
    of_kind(
        &[Marks],
        &[],
        &[
            Reasoning,
            CallsLost,
            CallsMore,
            Name,
            NoJson,
            ParametersLost,
            Types,
            ValueCut,
            ValueSpace,
            Value,
            MarksMore,
            ContentLost,
            ContentMore,
        ],
        "marks inside of values and of text count as marks (vllm#44060, sglang#23363, vllm PR#53924)",
    ),
    of_kind(
        &[Cut],
        &[],
        &[CallsLost, NoJson],
        "a call that is cut off is dropped or is text, or ends with half a mark; its name has left, so here it stays open (vllm#10395)",
    ),
    of_kind(
        &[Cut],
        &[],
        &[CallsMore, Completed, Open, ParametersLost],
        "half a call is completed, or a call without a mark counts before the answer is whole (vllm#10395, llama.cpp#18183)",
    ),
    of_kind(
        &[Cut],
        &[],
        &[ContentLost, ContentMore, MarksMore, Reasoning],
        "half a mark or half a message at the end is dropped; what is held back comes out at the end",
    ),
    of_kind(
        &[Broken],
        &[],
        &[Reasoning],
        "reasoning begins in the middle, or before a close alone; the prompt and the beginning decide (vllm-mlx PR#725, vllm PR#53924)",
    ),
    of_kind(
        &[Broken],
        &[],
        &[CallsLost, ContentLost],
        "what does not parse is dropped, or calls beside it with it (vllm PR#27701, llama.cpp#20729)",
    ),
    of_kind(
        &[Broken],
        &[],
        &[
            CallsMore,
            Name,
            NoJson,
            Completed,
            Open,
            ParametersLost,
            ParametersMore,
            Types,
            ValueCut,
            ValueSpace,
            Value,
            MarksMore,
            ContentMore,
        ],
        "a broken call is repaired, or read in part; what does not parse stays text, and an end mark without another behind it a value (vllm#10395, vllm#44060)",
    ),
    of_kind(
        &[Vectors],
        &[],
        &[CallsLost, CallsMore, ContentLost, ContentMore, MarksMore, NoJson, Name, Reasoning, Types],
        "others read one version of a form; the text decides, so relatives of a form and objects alone count (vllm#58315, vllm#46863)",
    ),
];

/// Position of the entry for a difference.
pub(crate) fn listed(other: Other, form: &str, kind: Kind, mode: Mode, class: Class) -> Option<usize> {
    fn has<T: PartialEq>(list: &[T], item: &T) -> bool {
        list.is_empty() || list.contains(item)
    }
    LISTED.iter().position(|entry| {
        has(entry.others, &other)
            && has(entry.forms, &form)
            && has(entry.kinds, &kind)
            && has(entry.modes, &mode)
            && entry.classes.contains(&class)
    })
}
