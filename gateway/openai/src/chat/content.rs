//! Parts of a message's content.

use omni_codec::{Object, body};
use omni_generation::{Content, InvalidRequest, Part, Role};
use schemars::JsonSchema;
use serde::Deserialize;

/// A part; its type says which of the fields it has.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ContentPart {
    /// `text`, `refusal`, `image_url` or `input_audio`.
    r#type: String,
    /// Text.
    text: Option<String>,
    /// Text of a refusal.
    refusal: Option<String>,
    /// Image.
    image_url: Option<ImageUrl>,
    /// Sound.
    input_audio: Option<InputAudio>,
    /// Accepted, without effect.
    #[serde(rename = "cache_control")]
    _cache_control: Option<Object>,
}

/// An image.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ImageUrl {
    /// Data URL, or an address of the schemes `http` and `https`.
    url: String,
    /// `auto`, `low` or `high`: a hint, without effect.
    detail: Option<String>,
}

/// Sound.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct InputAudio {
    /// Base64 of the file.
    data: String,
    /// Format of the file, such as `wav`.
    format: String,
}

impl ContentPart {
    pub(crate) fn into_content(parts: Vec<Self>, role: Role, at: &str) -> Result<Content, InvalidRequest> {
        let at = body::join(at, "content");
        if parts.is_empty() && role != Role::Assistant {
            return Err(InvalidRequest::new(&at, format!("`{at}` is empty")));
        }
        let parts = parts.into_iter().enumerate();
        let parts = parts.map(|(index, part)| part.into_part(role, &format!("{at}[{index}]")));
        Ok(Content::Parts(parts.collect::<Result<_, _>>()?))
    }

    fn into_part(self, role: Role, at: &str) -> Result<Part, InvalidRequest> {
        let missing = |name: &str| InvalidRequest::missing(&body::join(at, name));
        let part = match self.r#type.as_str() {
            "text" => Part::Text(self.text.ok_or_else(|| missing("text"))?),
            "refusal" => Part::Text(self.refusal.ok_or_else(|| missing("refusal"))?),
            "image_url" => {
                let image = self.image_url.ok_or_else(|| missing("image_url"))?;
                let at = body::join(at, "image_url");
                check_detail(image.detail.as_deref(), &at)?;
                Part::Image { url: checked_url(image.url, &body::join(&at, "url"))? }
            }
            "input_audio" => {
                let audio = self.input_audio.ok_or_else(|| missing("input_audio"))?;
                omni_codec::bounds::length(&body::join(at, "input_audio.format"), &audio.format, 16)?;
                Part::Audio { data: audio.data, format: audio.format }
            }
            "file" => {
                let message = "files are not supported in a message: send their text";
                return Err(InvalidRequest::unsupported(body::join(at, "type"), message));
            }
            _ => {
                let message = "the type of a part has to be `text`, `refusal`, `image_url` or `input_audio`";
                return Err(InvalidRequest::new(body::join(at, "type"), message));
            }
        };
        if role != Role::User && role != Role::Tool && !matches!(part, Part::Text(_)) {
            let message = format!("messages of the role `{}` have text alone", role.name());
            return Err(InvalidRequest::new(body::join(at, "type"), message));
        }
        Ok(part)
    }
}

fn check_detail(detail: Option<&str>, at: &str) -> Result<(), InvalidRequest> {
    match detail {
        None | Some("auto" | "low" | "high") => Ok(()),
        Some(_) => Err(InvalidRequest::new(body::join(at, "detail"), "`detail` has to be `auto`, `low` or `high`")),
    }
}

/// The address of an image, if models can read such addresses.
pub(crate) fn checked_url(url: String, at: &str) -> Result<String, InvalidRequest> {
    let is_data = url
        .strip_prefix("data:image/")
        .and_then(|rest| rest.split_once(','))
        .is_some_and(|(kind, data)| kind.len() <= 64 && kind.ends_with(";base64") && !data.is_empty());
    if is_data || url.starts_with("https://") || url.starts_with("http://") {
        return Ok(url);
    }
    let message = format!("`{at}` has to be an `https://` address or a data URL like `data:image/png;base64,…`");
    Err(InvalidRequest::new(at, message))
}
