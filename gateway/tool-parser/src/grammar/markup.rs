//! Calls in markup: GLM, MiniMax, and DSML of DeepSeek V3.2.

use super::tagged::list;
use super::{Body, FieldForm, Fields, Grammar, Header, Opening};
use crate::cursor::{Cursor, Parsed, Stop, or};
use crate::ids::IdForm;
use crate::tools::CompiledTools;

/// `<tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>`.
pub(crate) static GLM: Grammar = Grammar {
    openers: &["<tool_call>"],
    open: glm,
    next: super::none,
    closers: &["</tool_call>"],
    ids: IdForm::Call,
    ends_reasoning: false,
};

/// `<invoke name="f"><parameter name="p">v</parameter></invoke>`, and the JSON lines of MiniMax M1.
pub(crate) static MINIMAX: Grammar = Grammar {
    openers: &["<minimax:tool_call>", "<tool_calls>"],
    open: minimax,
    next: minimax_next,
    closers: &["</invoke>", "</minimax:tool_call>", "</tool_calls>"],
    ids: IdForm::Call,
    ends_reasoning: false,
};

/// The same with marks of its own, and parameters that tell strings from JSON.
pub(crate) static DSML: Grammar = Grammar {
    openers: &["<｜DSML｜function_calls>", "<｜DSML｜tool_calls>", "<｜DSML｜invoke"],
    open: dsml,
    next: dsml_invoke,
    closers: &["</｜DSML｜invoke>", "</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"],
    ids: IdForm::Call,
    ends_reasoning: false,
};

static GLM_FIELDS: Fields = Fields {
    opener: "<arg_key>",
    form: FieldForm::Key,
    close: "</arg_value>",
    call_close: "</tool_call>",
    outer: &[],
    next: &[],
    lines: false,
};

static INVOKE: Fields = Fields {
    opener: "<parameter name=\"",
    form: FieldForm::Attribute,
    close: "</parameter>",
    call_close: "</invoke>",
    outer: &["</minimax:tool_call>"],
    next: &["<invoke name="],
    lines: false,
};

static DSML_INVOKE: Fields = Fields {
    opener: "<｜DSML｜parameter name=\"",
    form: FieldForm::Attribute,
    close: "</｜DSML｜parameter>",
    call_close: "</｜DSML｜invoke>",
    outer: &["</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"],
    next: &["<｜DSML｜invoke name="],
    lines: false,
};

fn glm(cursor: &mut Cursor<'_>, tools: &CompiledTools) -> Parsed<Opening> {
    cursor.literal("<tool_call>")?;
    cursor.blank();
    if matches!(cursor.peek()?, b'{' | b'[') {
        return list(cursor);
    }
    let name = cursor.name()?.to_owned();
    cursor.blank();
    // A single word between the tags may be prose, unless it is a function.
    or(GLM_FIELDS.parameter(&mut cursor.clone()).map(drop), || match tools.offers(&name) {
        true => cursor.clone().literal(GLM_FIELDS.call_close),
        false => Err(Stop::No),
    })?;
    Ok(Opening::Call(Header { name, id: None, body: Body::Fields(&GLM_FIELDS) }))
}

fn minimax(cursor: &mut Cursor<'_>, tools: &CompiledTools) -> Parsed<Opening> {
    cursor.any(MINIMAX.openers)?;
    cursor.blank();
    minimax_next(cursor, tools)
}

fn minimax_next(cursor: &mut Cursor<'_>, _: &CompiledTools) -> Parsed<Opening> {
    let start = cursor.clone();
    or(list(cursor), || {
        *cursor = start;
        invoke(cursor, "<invoke name=\"", &INVOKE)
    })
}

fn dsml(cursor: &mut Cursor<'_>, tools: &CompiledTools) -> Parsed<Opening> {
    cursor.optional(&["<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"])?;
    cursor.blank();
    dsml_invoke(cursor, tools)
}

fn dsml_invoke(cursor: &mut Cursor<'_>, _: &CompiledTools) -> Parsed<Opening> {
    invoke(cursor, "<｜DSML｜invoke name=\"", &DSML_INVOKE)
}

fn invoke(cursor: &mut Cursor<'_>, opener: &str, fields: &'static Fields) -> Parsed<Opening> {
    cursor.literal(opener)?;
    let name = cursor.until("\"")?.to_owned();
    cursor.blank();
    cursor.literal(">")?;
    if name.is_empty() || name.contains(['\n', '<', '>']) {
        return Err(Stop::No);
    }
    let body = fields.body(cursor)?;
    Ok(Opening::Call(Header { name, id: None, body }))
}
