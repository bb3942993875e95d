//! Grammars of the dialects: where a call begins, what its arguments look like, what follows it.
//!
//! A rule reads from the marker to the first byte of the arguments. A text that a rule does not match stays text.

mod markup;
mod named;
mod object;
mod tagged;

use crate::cursor::{Cursor, Parsed, or};
use crate::ids::IdForm;
use crate::tools::CompiledTools;

pub(crate) use markup::{DSML, GLM, MINIMAX};
pub(crate) use named::{DEEPSEEK, GEMMA, KIMI, LLAMA3, MISTRAL, PYTHON};
pub(crate) use object::{bare, tail, whole};
pub(crate) use tagged::{JSON, TAGGED};

/// Rule for the beginning of a call.
pub(crate) type Rule = fn(&mut Cursor<'_>, &CompiledTools) -> Parsed<Opening>;

/// Grammar of a dialect.
#[derive(Debug)]
pub(crate) struct Grammar {
    /// Markers at which [`Grammar::open`] is tried.
    pub(crate) openers: &'static [&'static str],
    /// Beginning of a call, from one of the openers on.
    pub(crate) open: Rule,
    /// Beginning of a call directly behind another one, without an opener.
    pub(crate) next: Rule,
    /// Markers after a call.
    pub(crate) closers: &'static [&'static str],
    /// Ids of calls that have none.
    pub(crate) ids: IdForm,
    /// An opener ends the reasoning (Kimi K2 leaves out `</think>`).
    pub(crate) ends_reasoning: bool,
}

/// Beginning of a call that a rule has matched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Opening {
    /// Name and form of the arguments, which begin at the cursor.
    Call(Header),
    /// JSON object that has its arguments before its name, from the cursor on.
    Object,
    /// Python calls, from the cursor on.
    List,
    /// Call of Gemma, from the cursor on.
    Gemma,
}

/// Name and form of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) name: String,
    pub(crate) id: Option<String>,
    pub(crate) body: Body,
}

/// Form of arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    /// JSON value inside this number of objects.
    Value(u8),
    /// No arguments; the call is complete.
    Empty,
    /// Parameters in markup.
    Fields(&'static Fields),
    /// Any text up to one of these markers.
    Raw(&'static [&'static str]),
}

/// Parameters in markup, whose values are not escaped.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fields {
    /// Beginning of a parameter.
    pub(crate) opener: &'static str,
    /// Form of that beginning.
    pub(crate) form: FieldForm,
    /// End of a value.
    pub(crate) close: &'static str,
    /// End of the call.
    pub(crate) call_close: &'static str,
    /// Marker that should follow the end of the call, if there is one.
    pub(crate) outer: &'static [&'static str],
    /// Beginnings of a further call without an opener.
    pub(crate) next: &'static [&'static str],
    /// A line break at each end of a value belongs to the markup (Seed writes none, and those of its values are their own).
    pub(crate) lines: bool,
}

/// Form of the beginning of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldForm {
    /// `<parameter=NAME>`.
    Equals,
    /// `<parameter name="NAME">`, also with `string="true"` or `"false"`.
    Attribute,
    /// `<arg_key>NAME</arg_key><arg_value>`.
    Key,
}

/// Parameter whose value begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    /// Value is a string, or is JSON, if the markup says it.
    pub(crate) string: Option<bool>,
}

impl Fields {
    /// Beginning of a parameter.
    pub(crate) fn parameter(&self, cursor: &mut Cursor<'_>) -> Parsed<Parameter> {
        cursor.literal(self.opener)?;
        let mut string = None;
        let name = match self.form {
            FieldForm::Equals => cursor.until(">")?,
            FieldForm::Key => {
                let name = cursor.until("</arg_key>")?;
                cursor.blank();
                cursor.literal("<arg_value>")?;
                name
            }
            FieldForm::Attribute => {
                let name = cursor.until("\"")?;
                cursor.blank();
                if cursor.optional(&["string=\"true\""])? {
                    string = Some(true);
                } else if cursor.optional(&["string=\"false\""])? {
                    string = Some(false);
                }
                cursor.blank();
                cursor.literal(">")?;
                name
            }
        };
        let name = name.trim().to_owned();
        if name.is_empty() || name.contains(['\n', '<', '>']) {
            return Err(crate::cursor::Stop::No);
        }
        Ok(Parameter { name, string })
    }

    /// Form of the arguments after the beginning of a call. A call without parameters shows its end (vllm#28806).
    fn body(&'static self, cursor: &mut Cursor<'_>) -> Parsed<Body> {
        cursor.blank();
        if cursor.peek()? == b'{' {
            return Ok(Body::Value(0));
        }
        or(self.parameter(&mut cursor.clone()).map(drop), || cursor.clone().literal(self.call_close))?;
        Ok(Body::Fields(self))
    }
}

/// No call.
fn none(_: &mut Cursor<'_>, _: &CompiledTools) -> Parsed<Opening> {
    Err(crate::cursor::Stop::No)
}
