//! Tools of a request, and the choice between them.

use omni_codec::{Object, bounds};
use omni_generation::{InvalidRequest, Tool, ToolChoice};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::HashSet;

/// Most tools.
const MOST_TOOLS: usize = 512;
/// Longest name of a tool, in bytes.
const LONGEST_NAME: usize = 128;

/// A tool.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct InputTool {
    /// `custom`, or absent.
    r#type: Option<String>,
    /// Name.
    #[schemars(regex(pattern = "^[A-Za-z0-9_.:/-]+$"))]
    name: String,
    /// Purpose, for the model.
    description: Option<String>,
    /// JSON Schema of the arguments.
    input_schema: Option<Object>,
    /// Accepted: the schema goes to the model, and arguments are converted to its types.
    #[serde(rename = "strict")]
    _strict: Option<bool>,
    /// Accepted without effect.
    #[serde(rename = "cache_control")]
    _cache_control: Option<Object>,
    /// Accepted without effect: arguments are streamed as they come.
    #[serde(rename = "eager_input_streaming")]
    _eager_input_streaming: Option<bool>,
    /// Accepted if `false`.
    defer_loading: Option<bool>,
    /// Accepted if `direct` alone.
    allowed_callers: Option<Vec<String>>,
}

/// Choice of a tool.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ToolChoiceForm {
    /// `auto`, `any`, `tool` or `none`.
    r#type: String,
    /// Name of the tool, if the type is `tool`.
    name: Option<String>,
    /// At most one call in an answer.
    disable_parallel_tool_use: Option<bool>,
}

/// Reads the tools of a request.
pub(crate) fn read_tools(tools: Vec<InputTool>) -> Result<Vec<Tool>, InvalidRequest> {
    bounds::count("tools", tools.len(), 0..=MOST_TOOLS)?;
    let mut names = HashSet::new();
    let mut read = Vec::with_capacity(tools.len());
    for (index, tool) in tools.into_iter().enumerate() {
        let tool = tool.read(&format!("tools[{index}]"))?;
        if !names.insert(tool.name.clone()) {
            let message = format!("there are two tools with the name `{}`", tool.name);
            return Err(InvalidRequest::new(format!("tools[{index}].name"), message));
        }
        read.push(tool);
    }
    Ok(read)
}

impl InputTool {
    fn read(self, at: &str) -> Result<Tool, InvalidRequest> {
        if self.r#type.is_some_and(|kind| kind != "custom") {
            let message = "tools of the server are not supported: a tool needs a name and an `input_schema`";
            return Err(InvalidRequest::unsupported(format!("{at}.type"), message));
        }
        if self.defer_loading == Some(true) {
            let message = "`defer_loading` is not supported: all tools are shown to the model";
            return Err(InvalidRequest::unsupported(format!("{at}.defer_loading"), message));
        }
        if self.allowed_callers.is_some_and(|callers| callers.iter().any(|caller| caller != "direct")) {
            let message = "`allowed_callers` may have `direct` alone: tools are called by the model";
            return Err(InvalidRequest::unsupported(format!("{at}.allowed_callers"), message));
        }
        bounds::length(&format!("{at}.name"), &self.name, LONGEST_NAME)?;
        if !self.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte)) {
            return Err(InvalidRequest::new(format!("{at}.name"), "a name may have letters, digits and `_-.:/`"));
        }
        let schema = self.input_schema.ok_or_else(|| InvalidRequest::missing(&format!("{at}.input_schema")))?;
        let definition = definition(&self.name, self.description.as_deref(), schema.get());
        Ok(Tool { name: self.name, parameters: Some(schema.into_raw()), definition })
    }
}

/// The tool in the form that templates print.
fn definition(name: &str, description: Option<&str>, schema: &str) -> Box<RawValue> {
    let quoted = |text: &str| serde_json::to_string(text).unwrap_or_default();
    let description = description.map_or(String::new(), |text| format!("\"description\": {}, ", quoted(text)));
    let function = format!("{{\"name\": {}, {description}\"parameters\": {schema}}}", quoted(name));
    RawValue::from_string(format!("{{\"type\": \"function\", \"function\": {function}}}")).unwrap_or_default()
}

/// Reads `tool_choice`: the choice, and whether an answer may have several calls.
pub(crate) fn read_choice(
    choice: Option<ToolChoiceForm>,
    tools: &[Tool],
) -> Result<(ToolChoice, bool), InvalidRequest> {
    let Some(choice) = choice else { return Ok((ToolChoice::Auto, true)) };
    if tools.is_empty() && choice.r#type != "none" {
        return Err(InvalidRequest::new("tool_choice", "`tool_choice` needs `tools`"));
    }
    let parallel = !choice.disable_parallel_tool_use.unwrap_or(false);
    let choice = match (choice.r#type.as_str(), choice.name) {
        ("auto", None) => ToolChoice::Auto,
        ("any", None) => ToolChoice::Required,
        ("none", None) => ToolChoice::None,
        ("tool", Some(name)) if tools.iter().any(|tool| tool.name == name) => ToolChoice::Named(name),
        ("tool", Some(_)) => {
            return Err(InvalidRequest::new(
                "tool_choice.name",
                "`tool_choice` names a tool that is not among the `tools`",
            ));
        }
        ("tool", None) => return Err(InvalidRequest::missing("tool_choice.name")),
        ("auto" | "any" | "none", Some(_)) => {
            return Err(InvalidRequest::new("tool_choice.name", "a name needs the type `tool`"));
        }
        _ => {
            let message = "`tool_choice.type` has to be `auto`, `any`, `tool` or `none`";
            return Err(InvalidRequest::new("tool_choice.type", message));
        }
    };
    Ok((choice, parallel))
}
