//! The body of a request, made out of the command line.
//!
//! JSON is sent exactly as it was written unless `--field` or `--stream` add to it; files are sent as they are read, in
//! bounded memory. Invariant: invalid JSON is refused here, with exit code 2, and nothing is sent.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::HeaderValue;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use crate::cli::Run;
use crate::client::RequestBody;
use crate::failure::Failure;

/// Read from a file at once.
const PIECE: usize = 64 << 10;
/// Longest JSON that is read from standard input; it is kept in memory.
const JSON_LIMIT: u64 = 64 << 20;

/// The body and its media type.
pub(super) async fn of(arguments: &Run) -> Result<(HeaderValue, RequestBody), Failure> {
    if let Some(path) = &arguments.file {
        return Ok((HeaderValue::from_static("application/octet-stream"), file(path).await?));
    }
    let text = match arguments.json.as_deref() {
        Some("-") => stdin().await?,
        Some(text) => text.to_owned(),
        None => "{}".to_owned(),
    };
    let json = json(text, &arguments.field, arguments.stream)?;
    let body = Full::new(Bytes::from(json)).map_err(|never| match never {}).boxed();
    Ok((HeaderValue::from_static("application/json"), body))
}

async fn stdin() -> Result<String, Failure> {
    let mut text = String::new();
    let read = tokio::io::stdin().take(JSON_LIMIT + 1).read_to_string(&mut text).await;
    read.map_err(|error| Failure::Input(format!("standard input cannot be read as text: {error}")))?;
    if text.len() as u64 > JSON_LIMIT {
        return Err(Failure::Input(format!("JSON on standard input is longer than {} MiB", JSON_LIMIT >> 20)));
    }
    Ok(text)
}

/// The JSON text with the fields put into it.
fn json(text: String, fields: &[String], stream: bool) -> Result<String, Failure> {
    let not_json = |error: serde_json::Error| {
        Failure::Input(format!("the body is not JSON: {error}; a text is written '\"so\"', or use --field"))
    };
    if fields.is_empty() && !stream {
        serde_json::from_str::<&RawValue>(&text).map_err(not_json)?;
        return Ok(text);
    }
    let value: Value = serde_json::from_str(&text).map_err(not_json)?;
    let Value::Object(mut members) = value else {
        return Err(Failure::Input("--field and --stream add to a JSON object, and the body is none".to_owned()));
    };
    for text in fields {
        let (key, value) = field(text)?;
        members.insert(key, value);
    }
    if stream {
        members.insert("stream".to_owned(), Value::Bool(true));
    }
    Ok(Value::Object(members).to_string())
}

/// `KEY=TEXT` or `KEY:=JSON`.
fn field(text: &str) -> Result<(String, Value), Failure> {
    let wrong = |why: &str| Failure::Input(format!("`--field {text}`: {why}"));
    let (key, value) = text.split_once('=').ok_or_else(|| wrong("write KEY=TEXT or KEY:=JSON"))?;
    let (key, value) = match key.strip_suffix(':') {
        Some(key) => (key, serde_json::from_str(value).map_err(|_| wrong("what follows := is not JSON"))?),
        None => (key, Value::String(value.to_owned())),
    };
    if key.is_empty() { Err(wrong("the key is empty")) } else { Ok((key.to_owned(), value)) }
}

async fn file(path: &Path) -> Result<RequestBody, Failure> {
    if path == Path::new("-") {
        return Ok(Reader { source: Box::pin(tokio::io::stdin()), left: None }.boxed());
    }
    let failure = |source| Failure::File { verb: "read", path: path.to_owned(), source };
    let file = tokio::fs::File::open(path).await.map_err(failure)?;
    let metadata = file.metadata().await.map_err(failure)?;
    if metadata.is_dir() {
        return Err(failure(io::ErrorKind::IsADirectory.into()));
    }
    // Only a regular file has a known length before its end.
    let left = metadata.is_file().then_some(metadata.len());
    Ok(Reader { source: Box::pin(file), left }.boxed())
}

/// A body that is read while it is sent.
struct Reader {
    source: Pin<Box<dyn AsyncRead + Send + Sync>>,
    /// Bytes that have been promised and not been read.
    left: Option<u64>,
}

impl Body for Reader {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let most = self.left.map_or(PIECE, |left| usize::try_from(left).unwrap_or(PIECE).min(PIECE));
        if most == 0 {
            return Poll::Ready(None);
        }
        let mut piece = vec![0; most];
        let mut buffer = ReadBuf::new(&mut piece);
        if let Err(error) = ready!(self.source.as_mut().poll_read(cx, &mut buffer)) {
            return Poll::Ready(Some(Err(error)));
        }
        let read = buffer.filled().len();
        piece.truncate(read);
        if let Some(left) = &mut self.left {
            *left -= read as u64;
            if read == 0 {
                return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into())));
            }
        }
        Poll::Ready((read > 0).then(|| Ok(Frame::data(piece.into()))))
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }

    fn is_end_stream(&self) -> bool {
        self.left == Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_sent_as_it_was_written() {
        for text in ["{\"z\": 1.50, \"a\": 123456789012345678901234567890}", "[]", "\"text\"", " null "] {
            assert_eq!(json(text.to_owned(), &[], false).unwrap(), text);
        }
    }

    #[test]
    fn fields_are_put_into_the_object() {
        let fields = ["text=a=b", "n:=3", "list:=[1]", "empty="].map(str::to_owned);
        let body = json("{\"text\": \"old\", \"kept\": true}".to_owned(), &fields, true).unwrap();
        let expected = r#"{"text":"a=b","kept":true,"n":3,"list":[1],"empty":"","stream":true}"#;
        assert_eq!(body, expected);
    }

    #[test]
    fn unsendable_requests_are_refused() {
        for (text, fields, said) in [
            ("{text}", &[][..], "the body is not JSON"),
            ("{} {}", &[], "the body is not JSON"),
            ("[1]", &["a=b"], "the body is none"),
            ("{}", &["a"], "write KEY=TEXT"),
            ("{}", &["a:=b"], "not JSON"),
            ("{}", &["=b"], "the key is empty"),
        ] {
            let fields: Vec<String> = fields.iter().map(|field| (*field).to_owned()).collect();
            let failure = json(text.to_owned(), &fields, false).unwrap_err();
            assert!(failure.to_string().contains(said), "{failure}");
        }
    }
}
