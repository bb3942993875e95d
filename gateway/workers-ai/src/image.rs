//! Images for a text in the native form of the Workers AI API.

use omni_codec::body::{self, Unsupported};
use omni_codec::bounds;
use omni_generation::InvalidRequest;
use schemars::JsonSchema;
use serde::Deserialize;

/// Longest side of an image, in pixels.
const LONGEST_SIDE: u32 = 4096;
/// Longest text, in bytes.
const LONGEST_PROMPT: usize = 32 * 1024;

const UNSUPPORTED: Unsupported = &[
    ("image", "images are made of text alone"),
    ("image_b64", "images are made of text alone"),
    ("lora", "adapters are not loaded"),
    ("mask", "images are made of text alone"),
    ("strength", "images are made of text alone"),
];

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NativeImageRequest")]
pub(crate) struct ImageBody {
    prompt: String,
    negative_prompt: Option<String>,
    width: Option<u32>,
    height: Option<u32>,
    seed: Option<i64>,
    num_steps: Option<u32>,
    steps: Option<u32>,
    guidance: Option<f32>,
}

/// A request for an image.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageRequest {
    /// Text.
    pub prompt: String,
    /// Description of what should not be there.
    pub negative_prompt: Option<String>,
    /// Width in pixels.
    pub width: Option<u32>,
    /// Height in pixels.
    pub height: Option<u32>,
    /// Seed of the random numbers.
    pub seed: Option<i64>,
    /// Steps of the diffusion.
    pub steps: Option<u32>,
    /// Strength with which the diffusion follows the text.
    pub guidance: Option<f32>,
}

/// Reads the body of a request.
///
/// # Errors
/// A body that is not of the form, or a parameter that cannot be honoured.
pub fn image_request(json: &[u8]) -> Result<ImageRequest, InvalidRequest> {
    let body: ImageBody = body::parse(json, UNSUPPORTED)?;
    bounds::length("prompt", &body.prompt, LONGEST_PROMPT)?;
    let negative = body.negative_prompt.filter(|prompt| !prompt.is_empty());
    negative.as_deref().map_or(Ok(()), |prompt| bounds::length("negative_prompt", prompt, LONGEST_PROMPT))?;
    let (name, steps) = match (body.num_steps, body.steps) {
        (Some(_), Some(_)) => return Err(InvalidRequest::new("steps", "`num_steps` and `steps` exclude each other")),
        (None, steps) => ("steps", steps),
        (steps, None) => ("num_steps", steps),
    };
    Ok(ImageRequest {
        prompt: body.prompt,
        negative_prompt: negative,
        width: bounds::within("width", body.width, 16..=LONGEST_SIDE)?,
        height: bounds::within("height", body.height, 16..=LONGEST_SIDE)?,
        seed: body.seed,
        steps: bounds::within(name, steps, 1..=1000)?,
        guidance: bounds::within("guidance", body.guidance, 0.0..=1000.0)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_asked_for_by_size_and_steps() {
        let body = r#"{"prompt": "a cow", "negative_prompt": "grass", "width": 64, "height": 32, "num_steps": 4,
            "seed": 7, "guidance": 7.5}"#;
        let expected = ImageRequest {
            prompt: "a cow".into(),
            negative_prompt: Some("grass".into()),
            width: Some(64),
            height: Some(32),
            seed: Some(7),
            steps: Some(4),
            guidance: Some(7.5),
        };
        assert_eq!(image_request(body.as_bytes()).unwrap(), expected);
        assert_eq!(image_request(br#"{"prompt": "a", "steps": 8}"#).unwrap().steps, Some(8));
    }

    #[test]
    fn refused_requests() {
        for (parameters, expected) in [
            (r#""width": 8"#, "`width` is 8: it has to be from 16 to 4096"),
            (r#""steps": 0"#, "`steps` is 0: it has to be from 1 to 1000"),
            (r#""num_steps": 2000"#, "`num_steps` is 2000: it has to be from 1 to 1000"),
            (r#""num_steps": 2, "steps": 2"#, "`num_steps` and `steps` exclude each other"),
            (r#""image_b64": "aa""#, "`image_b64` is not supported: images are made of text alone"),
        ] {
            let body = format!(r#"{{"prompt": "a", {parameters}}}"#);
            assert_eq!(image_request(body.as_bytes()).unwrap_err().message, expected);
        }
    }
}
