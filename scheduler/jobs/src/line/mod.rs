//! Lines of input files: what they must be, and their parts. Pure.

#[cfg(test)]
mod tests;

use crate::types::{Form, LineError};
use serde::Deserialize;
use serde_json::value::RawValue;

/// Longest name of a model; a line with a longer one is refused.
const MODEL_NAME: usize = 512;

/// Fault of a line. Its number is the reader's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    code: &'static str,
    message: String,
    param: Option<&'static str>,
}

impl Fault {
    pub(crate) fn new(code: &'static str, message: impl Into<String>, param: Option<&'static str>) -> Self {
        Self { code, message: message.into(), param }
    }

    pub(crate) fn at(self, line: Option<u32>) -> LineError {
        LineError { code: self.code.into(), line, message: self.message, param: self.param.map(str::to_owned) }
    }
}

/// Facts about a good line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Checked {
    /// Name within the batch; lines of Workers AI have none that must be unique.
    pub(crate) custom_id: Option<String>,
    pub(crate) model: String,
    /// Bytes of its name's JSON in an output file.
    pub(crate) name: usize,
}

/// Members as they stand in the line: one with a wrong type is then named.
#[derive(Deserialize)]
struct Members<'a> {
    #[serde(borrow)]
    custom_id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<&'a RawValue>,
    #[serde(borrow)]
    url: Option<&'a RawValue>,
    #[serde(borrow)]
    body: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Named<'a> {
    #[serde(borrow)]
    custom_id: Option<&'a RawValue>,
    #[serde(borrow)]
    external_reference: Option<&'a RawValue>,
}

/// Checks a line without its end.
pub(crate) fn check(form: &Form, line: &[u8]) -> Result<Checked, Fault> {
    let text = object(line)?;
    match form {
        Form::OpenAi { endpoint } => check_openai(endpoint, text),
        Form::WorkersAi { model } => {
            serde_json::from_str::<Named<'_>>(text).map_err(|error| syntax(&error))?;
            Ok(Checked { custom_id: None, model: model.clone(), name: 0 })
        }
    }
}

fn check_openai(endpoint: &str, text: &str) -> Result<Checked, Fault> {
    let members: Members<'_> = serde_json::from_str(text).map_err(|error| syntax(&error))?;
    let name = members.custom_id.map_or(0, |name| name.get().len());
    let custom_id = string(members.custom_id, "custom_id")?;
    let method = string(members.method, "method")?;
    let url = string(members.url, "url")?;
    let Some(body) = members.body else { return Err(missing("body")) };
    if custom_id.is_empty() {
        return Err(Fault::new("invalid_value", "custom_id is empty.", Some("custom_id")));
    }
    if method != "POST" {
        return Err(Fault::new("invalid_method", "method has to be POST.", Some("method")));
    }
    if url != endpoint {
        let message = format!("url has to be {endpoint}, the endpoint of the batch.");
        return Err(Fault::new("mismatched_endpoint", message, Some("url")));
    }
    if !body.get().starts_with('{') {
        return Err(Fault::new("invalid_type", "body has to be an object.", Some("body")));
    }
    let body: Body<'_> = serde_json::from_str(body.get()).map_err(|error| syntax(&error))?;
    let model = string(body.model, "body.model")?;
    if model.is_empty() || model.len() > MODEL_NAME {
        return Err(Fault::new("invalid_value", "body.model is not the name of a model.", Some("body.model")));
    }
    Ok(Checked { custom_id: Some(custom_id), model, name })
}

/// An array would be read as a struct's members in their order.
fn object(line: &[u8]) -> Result<&str, Fault> {
    let text = str::from_utf8(line).map_err(|_| Fault::new("invalid_json_line", "The line is not UTF-8.", None))?;
    if !text.trim_start().starts_with('{') {
        return Err(Fault::new("invalid_json_line", "The line is not a JSON object.", None));
    }
    Ok(text)
}

fn syntax(error: &serde_json::Error) -> Fault {
    let message = format!("The line is not valid JSON, or names a member twice: {error}.");
    Fault::new("invalid_json_line", message, None)
}

fn missing(param: &'static str) -> Fault {
    Fault::new("missing_required_parameter", format!("{param} is missing."), Some(param))
}

fn string(value: Option<&RawValue>, param: &'static str) -> Result<String, Fault> {
    let value = value.ok_or_else(|| missing(param))?;
    serde_json::from_str(value.get())
        .map_err(|_| Fault::new("invalid_type", format!("{param} has to be a string."), Some(param)))
}

/// JSON of an item's name in its batch's file: `custom_id` or `external_reference`; `null` if it has none.
pub(crate) fn name<'a>(form: &Form, line: &'a [u8]) -> &'a str {
    let named = serde_json::from_slice::<Named<'a>>(line).ok();
    let value = named.and_then(|named| match form {
        Form::OpenAi { .. } => named.custom_id,
        Form::WorkersAi { .. } => named.external_reference,
    });
    value.map_or("null", RawValue::get)
}

/// Body of an item's request; `None` if the line is not what it was when it was checked.
pub(crate) fn body(form: &Form, line: Vec<u8>) -> Option<Vec<u8>> {
    match form {
        Form::OpenAi { .. } => {
            let members = serde_json::from_slice::<Members<'_>>(&line).ok()?;
            members.body.map(|body| body.get().as_bytes().to_vec())
        }
        Form::WorkersAi { .. } => Some(line),
    }
}

/// JSON on one line: breaks stand between its tokens only, since a string has none.
pub(crate) fn on_one_line(mut json: Vec<u8>) -> Vec<u8> {
    for byte in &mut json {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    json
}

/// JSON of a body on one line: as it is, or as a JSON string of its text.
pub(crate) fn as_json(body: Vec<u8>) -> Vec<u8> {
    if serde_json::from_slice::<&RawValue>(&body).is_ok() {
        return on_one_line(body);
    }
    serde_json::to_vec(&String::from_utf8_lossy(&body)).unwrap_or_else(|_| b"null".to_vec())
}
