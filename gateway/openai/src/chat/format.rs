//! Form that an answer must have.

use omni_codec::{Object, bounds};
use omni_generation::{InvalidRequest, ResponseFormat};
use schemars::JsonSchema;
use serde::Deserialize;

/// `response_format`: its type, and a schema where the type needs one.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResponseFormatForm {
    /// `text`, `json_object` or `json_schema`.
    r#type: String,
    /// `{"name", "schema", "strict"}`, or the schema itself.
    json_schema: Option<Object>,
}

/// A schema with its name.
#[derive(Debug, Deserialize)]
struct NamedSchema {
    name: Option<String>,
    schema: Option<Object>,
}

/// Reads `response_format`.
///
/// # Errors
/// An unknown type, or a type without the schema that it needs.
pub fn read_format(form: Option<ResponseFormatForm>) -> Result<ResponseFormat, InvalidRequest> {
    const AT: &str = "response_format.json_schema";
    let Some(form) = form else { return Ok(ResponseFormat::Text) };
    match (form.r#type.as_str(), form.json_schema) {
        ("text", None) => Ok(ResponseFormat::Text),
        ("json_object", None) => Ok(ResponseFormat::JsonObject),
        ("json_schema", Some(schema)) => {
            let raw = schema.into_raw();
            let named: NamedSchema = omni_codec::body::parse_part(&raw, AT, &[])?;
            // A schema of its own has no `schema`; the Workers AI API takes it so.
            match named.schema {
                Some(schema) => named_format(named.name, schema.into_raw()),
                None => named_format(None, raw),
            }
        }
        ("json_schema", None) => Err(InvalidRequest::missing(AT)),
        ("text" | "json_object", Some(_)) => {
            Err(InvalidRequest::new(AT, format!("`{AT}` needs `response_format.type` to be `json_schema`")))
        }
        _ => {
            let message = "the type of the format has to be `text`, `json_object` or `json_schema`";
            Err(InvalidRequest::new("response_format.type", message))
        }
    }
}

/// The format of a schema.
///
/// # Errors
/// A name that is empty or too long.
pub(crate) fn named_format(
    name: Option<String>,
    schema: Box<serde_json::value::RawValue>,
) -> Result<ResponseFormat, InvalidRequest> {
    let name = name.unwrap_or_else(|| "response".to_owned());
    bounds::length("response_format.json_schema.name", &name, 256)?;
    Ok(ResponseFormat::JsonSchema { name, schema })
}
