//! Blocks of a message's content.

use omni_codec::{Object, TextOr, body};
use omni_generation::{InvalidRequest, Part, ToolCall};
use schemars::JsonSchema;
use serde::Deserialize;

/// A block; its type says which of the fields it has.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct InputBlock {
    /// `text`, `image`, `document`, `tool_use`, `tool_result` or `thinking`.
    r#type: String,
    /// Text.
    text: Option<String>,
    /// Image, or document of text.
    source: Option<Source>,
    /// Title of a document.
    title: Option<String>,
    /// Id of a call.
    id: Option<String>,
    /// Name of a tool.
    name: Option<String>,
    /// Arguments of a call.
    input: Option<Object>,
    /// Call whose result the block is.
    tool_use_id: Option<String>,
    /// Result of a call.
    content: Option<TextOr<Vec<InputBlock>>>,
    /// Result that is an error.
    is_error: Option<bool>,
    /// Reasoning.
    thinking: Option<String>,
    /// Accepted without effect: reasoning is not signed.
    #[serde(rename = "signature")]
    _signature: Option<String>,
    /// Accepted without effect.
    #[serde(rename = "cache_control")]
    _cache_control: Option<Object>,
    /// Accepted without effect: the API returns them.
    #[serde(rename = "citations")]
    _citations: Option<TextOr<Vec<Object>>>,
    /// Accepted without effect: the API returns it.
    #[serde(rename = "caller")]
    _caller: Option<Object>,
}

/// Where an image or a document is.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Source {
    /// `base64`, `url` or `text`.
    r#type: String,
    /// Media type.
    media_type: Option<String>,
    /// Base64 of an image, or text of a document.
    data: Option<String>,
    /// Address of an image.
    url: Option<String>,
}

/// Result of a tool call.
#[derive(Debug)]
pub(crate) struct ToolResult {
    pub(crate) id: String,
    pub(crate) parts: Vec<Part>,
}

/// A block that was checked.
#[derive(Debug)]
pub(crate) enum Block {
    /// Text or image.
    Part(Part),
    /// Call of a tool.
    Call(ToolCall),
    /// Result of a call.
    Result(ToolResult),
    /// Reasoning.
    Reasoning(String),
}

impl InputBlock {
    /// Checks a block; `at` is its path.
    pub(crate) fn read(self, at: &str) -> Result<Block, InvalidRequest> {
        let missing = |name: &str| InvalidRequest::missing(&body::join(at, name));
        match self.r#type.as_str() {
            "text" => Ok(Block::Part(Part::Text(self.text.ok_or_else(|| missing("text"))?))),
            "image" => {
                let source = self.source.ok_or_else(|| missing("source"))?;
                Ok(Block::Part(Part::Image { url: source.into_url(&body::join(at, "source"))? }))
            }
            "document" => {
                let source = self.source.ok_or_else(|| missing("source"))?;
                let text = source.into_text(&body::join(at, "source"))?;
                Ok(Block::Part(Part::Text(self.title.map_or(text.clone(), |title| format!("{title}\n\n{text}")))))
            }
            "tool_use" => Ok(Block::Call(ToolCall {
                id: Some(self.id.ok_or_else(|| missing("id"))?),
                name: self.name.ok_or_else(|| missing("name"))?,
                arguments: self.input.ok_or_else(|| missing("input"))?.get().to_owned(),
            })),
            "tool_result" => {
                let id = self.tool_use_id.ok_or_else(|| missing("tool_use_id"))?;
                let mut parts = result_parts(self.content, &body::join(at, "content"))?;
                if self.is_error == Some(true) {
                    mark_error(&mut parts);
                }
                Ok(Block::Result(ToolResult { id, parts }))
            }
            "thinking" => Ok(Block::Reasoning(self.thinking.ok_or_else(|| missing("thinking"))?)),
            _ => {
                let message = "blocks of this type are not supported: there are `text`, `image`, `document`, `tool_use`, \
                               `tool_result` and `thinking`";
                Err(InvalidRequest::unsupported(body::join(at, "type"), message))
            }
        }
    }
}

fn result_parts(content: Option<TextOr<Vec<InputBlock>>>, at: &str) -> Result<Vec<Part>, InvalidRequest> {
    let blocks = match content {
        None => return Ok(vec![Part::Text(String::new())]),
        Some(TextOr::Text(text)) => return Ok(vec![Part::Text(text)]),
        Some(TextOr::Other(blocks)) => blocks,
    };
    let parts = blocks.into_iter().enumerate().map(|(index, block)| match block.read(&format!("{at}[{index}]"))? {
        Block::Part(part) => Ok(part),
        Block::Call(_) | Block::Result(_) | Block::Reasoning(_) => {
            Err(InvalidRequest::new(format!("{at}[{index}].type"), "a result has blocks of text, images and documents"))
        }
    });
    parts.collect()
}

/// Marks a result as an error. Templates have no place for it but the text.
fn mark_error(parts: &mut Vec<Part>) {
    match parts.first_mut() {
        Some(Part::Text(text)) => text.insert_str(0, "Error: "),
        _ => parts.insert(0, Part::Text("Error: ".to_owned())),
    }
}

impl Source {
    fn into_url(self, at: &str) -> Result<String, InvalidRequest> {
        let missing = |name: &str| InvalidRequest::missing(&body::join(at, name));
        match self.r#type.as_str() {
            "base64" => {
                let data = self.data.ok_or_else(|| missing("data"))?;
                match self.media_type.as_deref() {
                    Some(kind @ ("image/jpeg" | "image/png" | "image/gif" | "image/webp")) => {
                        Ok(format!("data:{kind};base64,{data}"))
                    }
                    _ => {
                        let message = "the media type has to be `image/jpeg`, `image/png`, `image/gif` or `image/webp`";
                        Err(InvalidRequest::new(body::join(at, "media_type"), message))
                    }
                }
            }
            "url" => {
                let url = self.url.ok_or_else(|| missing("url"))?;
                if url.starts_with("https://") || url.starts_with("http://") {
                    return Ok(url);
                }
                Err(InvalidRequest::new(body::join(at, "url"), "the address has to begin with `https://`"))
            }
            _ => {
                let message = "only sources of the types `base64` and `url` are supported";
                Err(InvalidRequest::unsupported(body::join(at, "type"), message))
            }
        }
    }

    fn into_text(self, at: &str) -> Result<String, InvalidRequest> {
        match (self.r#type.as_str(), self.data) {
            ("text", Some(text)) => Ok(text),
            ("text", None) => Err(InvalidRequest::missing(&body::join(at, "data"))),
            _ => {
                let message = "only documents of the type `text` are supported: send their text";
                Err(InvalidRequest::unsupported(body::join(at, "type"), message))
            }
        }
    }
}
