//! The answer of a model, printed according to its media type.
//!
//! Invariants: a stream is printed as it arrives and is complete only with its `[DONE]`; JSON is bounded, bytes pass
//! through in bounded memory; bytes never reach a terminal unless asked for.

use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use omni_config::ModelName;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::client::{Answer, ClientError, read};
use crate::failure::Failure;
use crate::output::{Format, Out};
use crate::sse::Events;

/// The last event of a stream that is complete.
const DONE: &str = "[DONE]";

/// The run API's envelope around a JSON value.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    result: &'a RawValue,
    /// Tells an envelope from a model's own object.
    #[serde(rename = "success")]
    _success: bool,
}

/// Prints an answer. `bytes_welcome`: whether `out` takes anything, or is a terminal.
pub(super) async fn print(
    out: &mut Out<'_>,
    format: Format,
    model: &ModelName,
    route: &str,
    answer: Response<Incoming>,
    bytes_welcome: bool,
) -> Result<(), Failure> {
    let media_type = media_type(&answer);
    let body = answer.into_body();
    match media_type.as_str() {
        "text/event-stream" => print_stream(out, format, model, body).await,
        media if media == "application/json" || media.ends_with("+json") => {
            print_json(out, format, &read(route, body).await?)
        }
        media if media.starts_with("text/") || bytes_welcome => copy(out, body).await,
        _ => Err(Failure::BinaryToTerminal { model: model.clone(), media_type }),
    }
}

/// The media type alone: lower case, without parameters.
fn media_type(answer: &Response<Incoming>) -> String {
    let value = answer.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if media_type.is_empty() { "bytes of no media type".to_owned() } else { media_type }
}

fn print_json(out: &mut Out<'_>, format: Format, answer: &Answer) -> Result<(), Failure> {
    let whole = answer.json()?;
    let Ok(Envelope { result, .. }) = answer.value::<Envelope<'_>>() else { return out.json(whole) };
    match format {
        Format::Json => out.json(whole),
        Format::Table => match serde_json::from_str::<String>(result.get()) {
            Ok(text) => out.line(text.strip_suffix('\n').unwrap_or(&text)),
            Err(_) => out.json(result.get()),
        },
    }
}

async fn copy(out: &mut Out<'_>, mut body: Incoming) -> Result<(), Failure> {
    while let Some(frame) = body.frame().await {
        if let Ok(bytes) = frame.map_err(ClientError::Broken)?.into_data() {
            out.bytes(&bytes)?;
            out.flush()?;
        }
    }
    Ok(())
}

async fn print_stream(out: &mut Out<'_>, format: Format, model: &ModelName, mut body: Incoming) -> Result<(), Failure> {
    let broken = |reason: String| Failure::Stream { model: model.clone(), reason };
    let mut events = Events::default();
    // Text comes in pieces without line ends; anything after it starts on a line of its own.
    let mut open_line = false;
    while let Some(frame) = body.frame().await {
        let Ok(bytes) = frame.map_err(ClientError::Broken)?.into_data() else { continue };
        for data in events.feed(&bytes).map_err(|error| broken(error.to_string()))? {
            let piece = piece(&data, format);
            if open_line && !matches!(piece, Piece::Text(_)) {
                out.text('\n')?;
                open_line = false;
            }
            match piece {
                Piece::Text(text) => {
                    out.text(&text)?;
                    open_line = (open_line || !text.is_empty()) && !text.ends_with('\n');
                }
                Piece::Line => out.line(&data)?,
                Piece::Error(message) => return Err(broken(message)),
                Piece::Done => return out.flush(),
            }
        }
        out.flush()?;
    }
    if open_line {
        out.text('\n')?;
    }
    Err(broken("its stream was cut off before its end".to_owned()))
}

/// Kind of an event.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    /// A piece of a text.
    Text(String),
    /// A value on a line of its own.
    Line,
    /// The model failed in mid-stream.
    Error(String),
    /// The end.
    Done,
}

fn piece(data: &str, format: Format) -> Piece {
    if data == DONE {
        return Piece::Done;
    }
    let Ok(Value::Object(event)) = serde_json::from_str(data) else { return Piece::Line };
    if let Some(error) = event.get("error") {
        let message = error.get("message").unwrap_or(error);
        return Piece::Error(message.as_str().map_or_else(|| message.to_string(), str::to_owned));
    }
    match (format, event.get("response")) {
        (Format::Table, Some(Value::String(text))) if event.len() == 1 => Piece::Text(text.clone()),
        (Format::Table | Format::Json, _) => Piece::Line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_is_one_kind_of_piece() {
        let text = |text: &str| Piece::Text(text.to_owned());
        let error = |text: &str| Piece::Error(text.to_owned());
        for (data, table, json) in [
            ("[DONE]", Piece::Done, Piece::Done),
            (r#"{"response": "hi\n"}"#, text("hi\n"), Piece::Line),
            (r#"{"response": "hi", "p": 1}"#, Piece::Line, Piece::Line),
            (r#"{"response": 3}"#, Piece::Line, Piece::Line),
            (r#"{"n": 1}"#, Piece::Line, Piece::Line),
            ("not JSON", Piece::Line, Piece::Line),
            (r#"{"error": {"message": "it died", "code": 3050}}"#, error("it died"), error("it died")),
            (r#"{"error": "it died"}"#, error("it died"), error("it died")),
        ] {
            assert_eq!(piece(data, Format::Table), table, "{data}");
            assert_eq!(piece(data, Format::Json), json, "{data}");
        }
    }
}
