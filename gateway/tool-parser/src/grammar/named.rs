//! Calls with a name before JSON (Mistral, DeepSeek, Kimi K2), Llama 3, and Python calls between tags.

use super::object::object;
use super::tagged::{list, offered_function, separated};
use super::{Body, Grammar, Header, Opening, none};
use crate::cursor::{Cursor, Parsed, Stop, or};
use crate::ids::IdForm;
use crate::tools::CompiledTools;

/// `[TOOL_CALLS][{…}]` of older versions, `[TOOL_CALLS]f{…}`, `[TOOL_CALLS]f[CALL_ID]…[ARGS]{…}` of newer ones.
pub(crate) static MISTRAL: Grammar = Grammar {
    openers: &["[TOOL_CALLS]"],
    open: mistral,
    next: objects,
    closers: &["]"],
    ids: IdForm::Nine,
    ends_reasoning: false,
};

/// Sections of DeepSeek V3, R1 and V3.1, with the misspellings that the models make.
pub(crate) static DEEPSEEK: Grammar = Grammar {
    openers: &[
        "<｜tool▁calls▁begin｜>",
        "<｜tool_calls_begin｜>",
        "<｜tool calls begin｜>",
        "<｜tool\\_calls\\_begin｜>",
        "<｜tool▁calls｜>",
        "<｜tool▁call▁begin｜>",
    ],
    open: deepseek,
    next: none,
    closers: &["```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"],
    ids: IdForm::Call,
    ends_reasoning: false,
};

/// Sections of Kimi K2, whose ids hold the name.
pub(crate) static KIMI: Grammar = Grammar {
    openers: &["<|tool_calls_section_begin|>", "<|tool_call_section_begin|>", "<|tool_call_begin|>"],
    open: kimi,
    next: none,
    closers: &["<|tool_call_end|>", "<|tool_calls_section_end|>", "<|tool_call_section_end|>"],
    ids: IdForm::Numbered,
    ends_reasoning: true,
};

/// `<|python_tag|>{…};{…}`, and functions in tags (Llama 3.1).
pub(crate) static LLAMA3: Grammar = Grammar {
    openers: &["<|python_tag|>", "<function="],
    open: llama,
    next: objects,
    closers: &["</function>", "]"],
    ids: IdForm::Call,
    ends_reasoning: false,
};

/// `<|tool_call>call:f{a:<|"|>x<|"|>}<tool_call|>`, and the same with other marks (FunctionGemma).
pub(crate) static GEMMA: Grammar = Grammar {
    openers: &["<|tool_call>", "<start_function_call>"],
    open: gemma,
    next: none,
    closers: &["<tool_call|>", "<end_function_call>"],
    ids: IdForm::Call,
    ends_reasoning: false,
};

/// Python calls between the tags of Llama 4, LFM2 or Olmo 3.
pub(crate) static PYTHON: Grammar = Grammar {
    openers: &["<|python_start|>", "<|tool_call_start|>", "<function_calls>"],
    open: python,
    next: python_next,
    closers: &["<|python_end|>", "<|tool_call_end|>", "</function_calls>", "]"],
    ids: IdForm::Call,
    ends_reasoning: false,
};

fn objects(cursor: &mut Cursor<'_>, _: &CompiledTools) -> Parsed<Opening> {
    separated(cursor)
}

fn call(name: &str, id: Option<String>, body: Body) -> Parsed<Opening> {
    Ok(Opening::Call(Header { name: name.to_owned(), id, body }))
}

fn mistral(cursor: &mut Cursor<'_>, _: &CompiledTools) -> Parsed<Opening> {
    cursor.literal("[TOOL_CALLS]")?;
    cursor.blank();
    if matches!(cursor.peek()?, b'[' | b'{') {
        return list(cursor);
    }
    let name = cursor.name()?;
    let mut id = None;
    if cursor.optional(&["[CALL_ID]"])? {
        id = Some(cursor.until("[ARGS]")?.trim().to_owned());
    } else {
        cursor.optional(&["[ARGS]"])?;
    }
    cursor.blank();
    if cursor.peek()? == b'{' { call(name, id, Body::Value(0)) } else { Err(Stop::No) }
}

fn deepseek(cursor: &mut Cursor<'_>, _: &CompiledTools) -> Parsed<Opening> {
    const CALL: &str = "<｜tool▁call▁begin｜>";
    let sections = DEEPSEEK.openers.get(..5).unwrap_or_default();
    if cursor.optional(sections)? {
        cursor.blank();
        cursor.optional(&[CALL])?;
    } else {
        cursor.literal(CALL)?;
    }
    let before = cursor.until("<｜tool▁sep｜>")?.trim();
    if before.contains(['<', '\n']) {
        return Err(Stop::No);
    }
    cursor.blank();
    if !before.is_empty() && cursor.peek()? == b'{' {
        return call(before, None, Body::Value(0));
    }
    let name = cursor.name()?;
    cursor.blank();
    if cursor.optional(&["```json"])? {
        cursor.blank();
    }
    if cursor.peek()? == b'{' { call(name, None, Body::Value(0)) } else { Err(Stop::No) }
}

fn kimi(cursor: &mut Cursor<'_>, _: &CompiledTools) -> Parsed<Opening> {
    cursor.optional(&["<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"])?;
    cursor.blank();
    cursor.literal("<|tool_call_begin|>")?;
    let id = cursor.until("<|tool_call_argument_begin|>")?.trim();
    let name = id.strip_prefix("functions.").unwrap_or(id);
    let name = name
        .rsplit_once(':')
        .filter(|(_, number)| number.bytes().all(|byte| byte.is_ascii_digit()))
        .map_or(name, |(name, _)| name);
    if name.is_empty() || id.contains(|c: char| c.is_whitespace() || "<{".contains(c)) {
        return Err(Stop::No);
    }
    cursor.blank();
    let body = if cursor.peek()? == b'{' { Body::Value(0) } else { Body::Raw(&["<|tool_call_end|>"]) };
    call(name, Some(id.to_owned()), body)
}

fn llama(cursor: &mut Cursor<'_>, tools: &CompiledTools) -> Parsed<Opening> {
    if !cursor.optional(&["<|python_tag|>"])? {
        return offered_function(cursor, tools);
    }
    cursor.blank();
    let start = cursor.clone();
    or(list(cursor), || {
        *cursor = start.clone();
        cursor.name()?;
        cursor.literal("(")?;
        *cursor = start;
        Ok(Opening::List)
    })
}

fn gemma(cursor: &mut Cursor<'_>, _: &CompiledTools) -> Parsed<Opening> {
    cursor.any(GEMMA.openers)?;
    cursor.blank();
    let start = cursor.clone();
    cursor.literal("call:")?;
    cursor.name()?;
    cursor.blank();
    cursor.literal("{")?;
    *cursor = start;
    Ok(Opening::Gemma)
}

fn python(cursor: &mut Cursor<'_>, _: &CompiledTools) -> Parsed<Opening> {
    cursor.any(PYTHON.openers)?;
    cursor.blank();
    python_list(cursor)
}

/// Another object, or a call on a line of its own (Olmo 3), which must be offered: there is no mark before it.
fn python_next(cursor: &mut Cursor<'_>, tools: &CompiledTools) -> Parsed<Opening> {
    let start = cursor.clone();
    or(separated(cursor), || {
        *cursor = start;
        if !tools.offers(cursor.clone().name()?) {
            return Err(Stop::No);
        }
        python_list(cursor)
    })
}

fn python_list(cursor: &mut Cursor<'_>) -> Parsed<Opening> {
    let start = cursor.clone();
    cursor.optional(&["["])?;
    cursor.blank();
    if cursor.peek()? == b'{' {
        return object(cursor);
    }
    cursor.name()?;
    cursor.literal("(")?;
    *cursor = start;
    Ok(Opening::List)
}
