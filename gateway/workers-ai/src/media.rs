//! Files in requests and answers of the Workers AI API: base64 in JSON, or bytes.

use crate::envelope::enveloped;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use hyper::header::{ACCEPT, HeaderMap};
use schemars::JsonSchema;
use serde::Serialize;

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "NativeSound")]
pub(crate) struct Sound<'a> {
    audio: &'a str,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "NativeImage")]
pub(crate) struct Picture<'a> {
    image: &'a str,
}

/// Returns true if the client accepts JSON alone, as Cloudflare's SDKs do: sound is sent in base64.
#[must_use]
pub fn accepts_json_alone(headers: &HeaderMap) -> bool {
    let mut ranges = accepted(headers).peekable();
    ranges.peek().is_some() && ranges.all(|range| range.eq_ignore_ascii_case("application/json"))
}

/// Returns true if the client names a type of images among those that it accepts: an image is sent as bytes. workers-ai-provider accepts
/// everything, and reads images from JSON.
#[must_use]
pub fn accepts_images(headers: &HeaderMap) -> bool {
    accepted(headers).any(|range| range.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("image/")))
}

/// Media types that the client accepts, without parameters.
fn accepted(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let ranges = values.flat_map(|value| value.split(','));
    ranges.map(|range| range.split(';').next().unwrap_or_default().trim()).filter(|range| !range.is_empty())
}

/// The file that base64 has, also behind the head of a data URL; `None`: it is none.
#[must_use]
pub fn decode_file(text: &str) -> Option<Bytes> {
    let text = match text.strip_prefix("data:") {
        Some(url) => url.split_once(";base64,")?.1,
        None => text,
    };
    BASE64_STANDARD.decode(text).ok().map(Bytes::from)
}

/// `{"audio": …}`, for a file with sound.
#[must_use]
pub fn audio_answer(file: &[u8]) -> Bytes {
    enveloped(&Sound { audio: &BASE64_STANDARD.encode(file) })
}

/// `{"image": …}`, for an image in base64.
#[must_use]
pub fn image_answer(base64: &str) -> Bytes {
    enveloped(&Picture { image: base64 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    #[test]
    fn the_form_of_a_file_depends_on_what_the_client_accepts() {
        for (accept, json_alone, images) in [
            (None, false, false),
            (Some("*/*"), false, false),
            (Some(""), false, false),
            (Some("application/json"), true, false),
            (Some("Application/JSON;q=0.9"), true, false),
            (Some("application/json, audio/*"), false, false),
            (Some("image/png"), false, true),
            (Some("text/html, Image/*;q=0.5"), false, true),
        ] {
            let accept = accept.map(|accept| (ACCEPT, HeaderValue::from_static(accept)));
            let headers: HeaderMap = accept.into_iter().collect();
            assert_eq!((accepts_json_alone(&headers), accepts_images(&headers)), (json_alone, images), "{headers:?}");
        }
    }

    #[test]
    fn files_are_base64_or_data_urls() {
        for (text, expected) in [
            ("bW9v", Some("moo")),
            ("data:audio/wav;base64,bW9v", Some("moo")),
            ("data:audio/wav,moo", None),
            ("moo!", None),
        ] {
            assert_eq!(decode_file(text), expected.map(Bytes::from), "{text}");
        }
        assert_eq!(audio_answer(b"moo"), r#"{"result":{"audio":"bW9v"},"success":true,"errors":[],"messages":[]}"#);
        assert_eq!(image_answer("bW9v"), r#"{"result":{"image":"bW9v"},"success":true,"errors":[],"messages":[]}"#);
    }
}
