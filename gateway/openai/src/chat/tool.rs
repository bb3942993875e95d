//! Tools of a request, and the choice between them.

use omni_codec::{Object, RawMembers, TextOr, body, bounds};
use omni_generation::{InvalidRequest, Tool, ToolChoice};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::HashSet;

/// Most tools.
const MOST_TOOLS: usize = 512;
/// Longest name of a function, in bytes.
const LONGEST_NAME: usize = 128;

/// A tool in the form of the OpenAI API, or a function alone, in that of the Workers AI and Responses APIs. Further fields go to the
/// template as they are.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct ToolDefinition {
    /// `function`.
    r#type: Option<String>,
    /// Function.
    function: Option<FunctionDefinition>,
    /// Name of the function, without `function`.
    name: Option<String>,
    /// Parameters of the function, without `function`.
    parameters: Option<Object>,
}

/// A function.
#[derive(Debug, Deserialize, JsonSchema)]
struct FunctionDefinition {
    /// Name.
    name: String,
    /// Purpose, for the model.
    #[serde(rename = "description")]
    _description: Option<String>,
    /// JSON Schema of the arguments.
    parameters: Option<Object>,
    /// Accepted: the schema goes to the model, and arguments are converted to its types.
    #[serde(rename = "strict")]
    _strict: Option<bool>,
}

/// Forms in which tools may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolForm {
    /// `{"type": "function", "function": {…}}`.
    Wrapped,
    /// `{"type": "function", "name", …}`.
    Flat,
    /// Either.
    Any,
}

/// Reads the tools of a request; `at` is their path.
///
/// # Errors
/// A tool that is no function, has no valid name, or the name of another one.
pub fn read_tools(tools: Vec<Object>, form: ToolForm, at: &str) -> Result<Vec<Tool>, InvalidRequest> {
    bounds::count(at, tools.len(), 0..=MOST_TOOLS)?;
    let mut names = HashSet::new();
    let mut read = Vec::with_capacity(tools.len());
    for (index, tool) in tools.into_iter().enumerate() {
        let at = format!("{at}[{index}]");
        let tool = read_tool(tool, form, &at)?;
        if !names.insert(tool.name.clone()) {
            return Err(InvalidRequest::new(at, format!("there are two tools with the name `{}`", tool.name)));
        }
        read.push(tool);
    }
    Ok(read)
}

fn read_tool(tool: Object, form: ToolForm, at: &str) -> Result<Tool, InvalidRequest> {
    let definition = tool.into_raw();
    let ToolDefinition { r#type, function, name, parameters } = body::parse_part(&definition, at, &[])?;
    match r#type.as_deref() {
        Some("function") => {}
        None if form == ToolForm::Any => {}
        None => return Err(InvalidRequest::missing(&body::join(at, "type"))),
        Some(_) => {
            let message = "only tools of the type `function` are supported";
            return Err(InvalidRequest::unsupported(body::join(at, "type"), message));
        }
    }
    match (function, name) {
        (Some(function), _) if form != ToolForm::Flat => {
            check_name(&function.name, &body::join(at, "function.name"))?;
            let parameters = function.parameters.map(Object::into_raw);
            let definition = match r#type {
                Some(_) => definition,
                None => rewritten(&definition, at, r#"{"type": "function", "#, "}")?,
            };
            Ok(Tool { name: function.name, parameters, definition })
        }
        (None, Some(name)) if form != ToolForm::Wrapped => {
            check_name(&name, &body::join(at, "name"))?;
            let parameters = parameters.map(Object::into_raw);
            let definition = rewritten(&definition, at, r#"{"type": "function", "function": {"#, "}}")?;
            Ok(Tool { name, parameters, definition })
        }
        _ if form == ToolForm::Wrapped => Err(InvalidRequest::missing(&body::join(at, "function"))),
        _ => Err(InvalidRequest::missing(&body::join(at, "name"))),
    }
}

/// A definition between other text, in the form that templates print: its members in their order, but for `type`.
fn rewritten(definition: &RawValue, at: &str, before: &str, after: &str) -> Result<Box<RawValue>, InvalidRequest> {
    let members: RawMembers = body::parse_part(definition, at, &[])?;
    let members = members.0.iter().filter(|(name, _)| name != "type");
    let members = members.map(|(name, value)| {
        let name = serde_json::to_string(name).unwrap_or_default();
        format!("{name}: {}", value.get())
    });
    let text = format!("{before}{}{after}", members.collect::<Vec<_>>().join(", "));
    RawValue::from_string(text).map_err(|_| InvalidRequest::new(at, "the tool is not JSON"))
}

fn check_name(name: &str, at: &str) -> Result<(), InvalidRequest> {
    bounds::length(at, name, LONGEST_NAME)?;
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte);
    if name.bytes().all(is_allowed) {
        return Ok(());
    }
    Err(InvalidRequest::new(at, format!("`{at}` may have letters, digits and `_-.:/`")))
}

/// Choice of a tool: a word, or the name of a function.
pub type ToolChoiceForm = TextOr<NamedChoice>;

/// Choice of one function: `{"type": "function", "function": {"name"}}`, or `{"type": "function", "name"}`.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct NamedChoice {
    /// `function`.
    r#type: Option<String>,
    /// Function.
    function: Option<FunctionName>,
    /// Name of the function, without `function`.
    name: Option<String>,
}

/// Name of a function.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FunctionName {
    /// Name.
    name: String,
}

/// Reads `tool_choice`.
///
/// # Errors
/// A choice without tools, an unknown word, or a name that no tool has.
pub fn read_choice(choice: Option<ToolChoiceForm>, tools: &[Tool]) -> Result<ToolChoice, InvalidRequest> {
    const AT: &str = "tool_choice";
    let Some(choice) = choice else { return Ok(ToolChoice::Auto) };
    if tools.is_empty() {
        return Err(InvalidRequest::new(AT, "`tool_choice` needs `tools`"));
    }
    let named = match choice {
        TextOr::Text(word) => {
            return match word.as_str() {
                "auto" => Ok(ToolChoice::Auto),
                "none" => Ok(ToolChoice::None),
                "required" | "any" => Ok(ToolChoice::Required),
                _ => {
                    let message =
                        "`tool_choice` has to be `auto`, `none`, `required` or the name of a function in an object";
                    Err(InvalidRequest::new(AT, message))
                }
            };
        }
        TextOr::Other(named) => named,
    };
    if named.r#type.as_deref() != Some("function") {
        let message = "only a choice of the type `function` is supported";
        return Err(InvalidRequest::unsupported("tool_choice.type", message));
    }
    let name = named.function.map(|function| function.name).or(named.name);
    let name = name.ok_or_else(|| InvalidRequest::missing("tool_choice.function.name"))?;
    if tools.iter().all(|tool| tool.name != name) {
        return Err(InvalidRequest::new(AT, "`tool_choice` names a function that is not among the `tools`"));
    }
    Ok(ToolChoice::Named(name))
}
