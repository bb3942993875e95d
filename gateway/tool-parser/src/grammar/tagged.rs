//! Calls between tags: JSON objects (Hermes, Qwen, Granite, Nemotron 2, Command R, LongCat), functions in markup (Qwen3-Coder, MiMo,
//! Nemotron 3, Seed).
//!
//! The text decides between the two: models trained on one write the other (vllm#58315).

use super::object::object;
use super::{FieldForm, Fields, Grammar, Header, Opening, none};
use crate::cursor::{Cursor, Parsed, Stop, or};
use crate::ids::IdForm;
use crate::tools::CompiledTools;

const TAGS: &[&str] = &[
    "<tool_call>",
    "<|tool_call|>",
    "<tool_calls>",
    "<TOOLCALL>",
    "<seed:tool_call>",
    "<|START_ACTION|>",
    "<function_call>",
    "functools",
    "<longcat_tool_call>",
];

/// Tags of Hermes and its relatives, and a function in markup without a tag, which Qwen3-Coder often leaves out.
pub(crate) static TAGGED: Grammar = Grammar {
    openers: &[
        "<tool_call>",
        "<|tool_call|>",
        "<tool_calls>",
        "<TOOLCALL>",
        "<seed:tool_call>",
        "<|START_ACTION|>",
        "<function_call>",
        "functools",
        "<longcat_tool_call>",
        "<function=",
        "<function name=",
    ],
    open,
    next,
    closers: &[
        "</tool_call>",
        "<|/tool_call|>",
        "</tool_calls>",
        "</TOOLCALL>",
        "</seed:tool_call>",
        "<|END_ACTION|>",
        "</function_call>",
        "</longcat_tool_call>",
        "</function>",
        "]",
    ],
    ids: IdForm::Call,
    ends_reasoning: false,
};

/// No markers: the whole answer is one or more calls, or none.
pub(crate) static JSON: Grammar =
    Grammar { openers: &[], open: none, next: object_after, closers: &["]"], ids: IdForm::Call, ends_reasoning: false };

static FUNCTION: Fields = Fields {
    opener: "<parameter=",
    form: FieldForm::Equals,
    close: "</parameter>",
    call_close: "</function>",
    outer: &["</tool_call>", "</seed:tool_call>"],
    next: &["<function="],
    lines: true,
};

/// MiniCPM: `<function name="f"><param name="p">v</param></function>`.
static ATTRIBUTES: Fields = Fields {
    opener: "<param name=\"",
    form: FieldForm::Attribute,
    close: "</param>",
    call_close: "</function>",
    outer: &["</tool_call>"],
    next: &["<function name="],
    lines: true,
};

fn open(cursor: &mut Cursor<'_>, tools: &CompiledTools) -> Parsed<Opening> {
    if cursor.optional(TAGS)? {
        cursor.blank();
        return or(list(cursor), || function(cursor));
    }
    offered_function(cursor, tools)
}

fn next(cursor: &mut Cursor<'_>, _: &CompiledTools) -> Parsed<Opening> {
    let start = cursor.clone();
    or(separated(cursor), || {
        *cursor = start;
        function(cursor)
    })
}

fn object_after(cursor: &mut Cursor<'_>, _: &CompiledTools) -> Parsed<Opening> {
    separated(cursor)
}

/// An object, or the first of an array.
pub(super) fn list(cursor: &mut Cursor<'_>) -> Parsed<Opening> {
    if cursor.optional(&["["])? {
        cursor.blank();
    }
    if cursor.peek()? == b'{' { object(cursor) } else { Err(Stop::No) }
}

/// Another object: of an array, or after a semicolon (dynamo#9536).
pub(super) fn separated(cursor: &mut Cursor<'_>) -> Parsed<Opening> {
    if cursor.optional(&[",", ";"])? {
        cursor.blank();
    }
    list(cursor)
}

/// A function without a tag must be offered: prose may mention the form.
pub(super) fn offered_function(cursor: &mut Cursor<'_>, tools: &CompiledTools) -> Parsed<Opening> {
    match function(cursor)? {
        Opening::Call(header) if !tools.offers(&header.name) => Err(Stop::No),
        opening => Ok(opening),
    }
}

fn function(cursor: &mut Cursor<'_>) -> Parsed<Opening> {
    cursor.literal("<function")?;
    let (fields, close) = if cursor.optional(&["="])? {
        (&FUNCTION, ">")
    } else {
        cursor.literal(" name=\"")?;
        (&ATTRIBUTES, "\">")
    };
    let name = cursor.name()?.to_owned();
    cursor.literal(close)?;
    let body = fields.body(cursor)?;
    Ok(Opening::Call(Header { name, id: None, body }))
}
