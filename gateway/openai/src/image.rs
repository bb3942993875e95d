//! Images for a text: `/v1/images/generations`.

use bytes::Bytes;
use omni_codec::body::{self, Unsupported};
use omni_codec::bounds;
use omni_generation::InvalidRequest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most images of a request.
const MOST_IMAGES: u32 = 10;
/// Longest side of an image, in pixels.
const LONGEST_SIDE: u32 = 4096;
/// Longest text, in bytes.
const LONGEST_PROMPT: usize = 32 * 1024;

const UNSUPPORTED: Unsupported = &[
    ("complexity", "the model decides"),
    ("effort", "the model decides"),
    ("frame_count", "images do not move"),
    ("frame_duration_ms", "images do not move"),
    ("output_compression", "the model decides"),
    ("output_format", "the model decides"),
    ("partial_images", "images come as a whole"),
    ("reasoning", "the model decides"),
    ("style", "describe it in the prompt"),
    ("svg", "images are of pixels"),
];

/// Body of a request.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ImageBody {
    /// Model.
    model: String,
    /// Text.
    prompt: String,
    /// Number of images.
    #[schemars(range(min = 1, max = 10))]
    n: Option<u32>,
    /// Width and height, such as `1024x1024`; `auto`: the model's own.
    size: Option<String>,
    /// `b64_json`.
    response_format: Option<String>,
    /// Description of what should not be there.
    negative_prompt: Option<String>,
    /// Seed of the random numbers.
    seed: Option<i64>,
    /// Steps of the diffusion.
    #[schemars(range(min = 1, max = 1000))]
    steps: Option<u32>,
    /// Accepted if `auto` or `standard`.
    quality: Option<String>,
    /// Accepted if `auto`.
    background: Option<String>,
    /// Accepted without effect: there is no moderation here.
    #[serde(rename = "moderation")]
    _moderation: Option<String>,
    /// Accepted if `false`.
    stream: Option<bool>,
    /// Accepted without effect.
    #[serde(rename = "user")]
    _user: Option<String>,
    /// Accepted without effect.
    #[serde(rename = "safety_identifier")]
    _safety_identifier: Option<String>,
}

/// A request for images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRequest {
    /// Model, by the name that the client sent.
    pub model: String,
    /// Text.
    pub prompt: String,
    /// Description of what should not be there.
    pub negative_prompt: Option<String>,
    /// Number of images.
    pub n: u32,
    /// Width and height in pixels; `None`: the model's own.
    pub size: Option<(u32, u32)>,
    /// Seed of the random numbers.
    pub seed: Option<i64>,
    /// Steps of the diffusion.
    pub steps: Option<u32>,
}

/// Reads the body of a request.
///
/// # Errors
/// A body that is not of the form, or a parameter that cannot be honoured.
pub fn image_request(json: &[u8]) -> Result<ImageRequest, InvalidRequest> {
    let body: ImageBody = body::parse(json, UNSUPPORTED)?;
    bounds::length("model", &body.model, 256)?;
    bounds::length("prompt", &body.prompt, LONGEST_PROMPT)?;
    let is = |value: &Option<String>, allowed: &[&str]| value.as_deref().is_none_or(|value| allowed.contains(&value));
    for (is_honoured, name, message) in [
        (is(&body.response_format, &["b64_json"]), "response_format", "images are not stored: send `b64_json`"),
        (is(&body.quality, &["auto", "standard"]), "quality", "the model decides: send `auto`, or leave `quality` out"),
        (is(&body.background, &["auto"]), "background", "the model decides: send `auto`, or leave `background` out"),
        (body.stream != Some(true), "stream", "images come as a whole: leave `stream` out"),
    ] {
        if !is_honoured {
            return Err(InvalidRequest::unsupported(name, message));
        }
    }
    Ok(ImageRequest {
        model: body.model,
        prompt: body.prompt,
        negative_prompt: body.negative_prompt.filter(|prompt| !prompt.is_empty()),
        n: bounds::within("n", body.n, 1..=MOST_IMAGES)?.unwrap_or(1),
        size: body.size.as_deref().map_or(Ok(None), read_size)?,
        seed: body.seed,
        steps: bounds::within("steps", body.steps, 1..=1000)?,
    })
}

fn read_size(size: &str) -> Result<Option<(u32, u32)>, InvalidRequest> {
    if size == "auto" {
        return Ok(None);
    }
    let side = |text: &str| text.parse().ok().filter(|side| (16..=LONGEST_SIDE).contains(side));
    let sides = size.split_once('x').and_then(|(width, height)| Some((side(width)?, side(height)?)));
    let message = "`size` has to be `auto`, or width and height from 16 to 4096 like `1024x1024`";
    sides.map(Some).ok_or_else(|| InvalidRequest::new("size", message))
}

/// Answer with images.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ImageList<'a> {
    /// Time, in seconds since 1970.
    created: u64,
    /// Images.
    data: Vec<Image<'a>>,
}

/// An image.
#[derive(Debug, Serialize, JsonSchema)]
struct Image<'a> {
    /// The file in base64.
    b64_json: &'a str,
}

/// The answer with these images: files in base64.
#[must_use]
pub fn image_answer<'a>(created: u64, images: impl IntoIterator<Item = &'a str>) -> Bytes {
    let data = images.into_iter().map(|b64_json| Image { b64_json }).collect();
    Bytes::from(serde_json::to_vec(&ImageList { created, data }).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_asked_for_by_size_and_number() {
        let body = r#"{"model": "m", "prompt": "a cow", "n": 2, "size": "1024x768", "response_format": "b64_json",
            "negative_prompt": "grass", "seed": 7, "steps": 20, "quality": "standard", "user": "u"}"#;
        let expected = ImageRequest {
            model: "m".into(),
            prompt: "a cow".into(),
            negative_prompt: Some("grass".into()),
            n: 2,
            size: Some((1024, 768)),
            seed: Some(7),
            steps: Some(20),
        };
        assert_eq!(image_request(body.as_bytes()).unwrap(), expected);
        let bare = image_request(br#"{"model": "m", "prompt": "a cow", "size": "auto"}"#).unwrap();
        assert_eq!((bare.n, bare.size), (1, None));
    }

    #[test]
    fn refused_requests() {
        let size = "`size` has to be `auto`, or width and height from 16 to 4096 like `1024x1024`";
        for (parameters, expected) in [
            (r#""n": 11"#, "`n` is 11: it has to be from 1 to 10"),
            (r#""size": "huge""#, size),
            (r#""size": "8x8""#, size),
            (r#""size": "99999x64""#, size),
            (r#""response_format": "url""#, "images are not stored: send `b64_json`"),
            (r#""quality": "hd""#, "the model decides: send `auto`, or leave `quality` out"),
            (r#""background": "transparent""#, "the model decides: send `auto`, or leave `background` out"),
            (r#""stream": true"#, "images come as a whole: leave `stream` out"),
            (r#""style": "vivid""#, "`style` is not supported: describe it in the prompt"),
        ] {
            let body = format!(r#"{{"model": "m", "prompt": "a", {parameters}}}"#);
            assert_eq!(image_request(body.as_bytes()).unwrap_err().message, expected);
        }
    }

    #[test]
    fn answers_have_images_in_base64() {
        assert_eq!(image_answer(7, ["AAAA"]), r#"{"created":7,"data":[{"b64_json":"AAAA"}]}"#);
    }
}
