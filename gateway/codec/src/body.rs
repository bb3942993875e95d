//! JSON bodies as typed values, with errors that name the parameter by its path.

use crate::{RawMembers, other_api};
use omni_request_error::{InvalidCode, InvalidRequest};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use serde_json::value::RawValue;

/// Longest name of a client's own that an error repeats, in bytes.
const LONGEST_NAME: usize = 64;
/// Longest path that an error names, in bytes.
const LONGEST_PATH: usize = 192;
/// Longest reason that an error repeats, in bytes.
const LONGEST_REASON: usize = 512;

/// Parameters of an API that cannot be honoured, each with its reason.
pub type Unsupported = &'static [(&'static str, &'static str)];

/// Reads a whole body.
///
/// # Errors
/// No JSON, or JSON of another form than the type's. Parameters in `unsupported` are refused for their reasons unless they are
/// `null`, other unknown ones with the nearest known name.
pub fn parse<T: DeserializeOwned>(body: &[u8], unsupported: Unsupported) -> Result<T, InvalidRequest> {
    // Structs would take the values of an array in the order of their fields.
    if body.trim_ascii_start().starts_with(b"[") {
        let message = "the request's body is an array: it has to be an object".to_owned();
        return Err(InvalidRequest { message, parameter: None, code: InvalidCode::Type });
    }
    if let Ok(value) = serde_json::from_slice(body) {
        return Ok(value);
    }
    match without_nulls(body, unsupported) {
        Some(body) => parse_explained(&body, unsupported),
        None => parse_explained(body, unsupported),
    }
}

/// Reads a body that may be wrong: keeping track of paths takes as long as reading does.
fn parse_explained<T: DeserializeOwned>(body: &[u8], unsupported: Unsupported) -> Result<T, InvalidRequest> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut deserializer)
        .map_err(|error| explain(&path_of(&error), error.inner(), unsupported))?;
    deserializer.end().map_err(|error| explain("", &error, unsupported))?;
    Ok(value)
}

/// The body without the unsupported parameters that are `null`, which ask for nothing; `None` if it has none of them, or
/// is not an object within the limits of [`RawMembers`].
fn without_nulls(body: &[u8], unsupported: Unsupported) -> Option<Vec<u8>> {
    let RawMembers(mut members) = serde_json::from_slice(body).ok()?;
    let given = members.len();
    let is_ignored = |name: &str, value: &RawValue| {
        value.get() == "null" && unsupported.iter().any(|(unsupported, _)| *unsupported == name)
    };
    members.retain(|(name, value)| !is_ignored(name, value));
    if members.len() == given {
        return None;
    }
    let mut rest = vec![b'{'];
    for (at, (name, value)) in members.iter().enumerate() {
        if at > 0 {
            rest.push(b',');
        }
        serde_json::to_writer(&mut rest, name).ok()?;
        rest.push(b':');
        rest.extend_from_slice(value.get().as_bytes());
    }
    rest.push(b'}');
    Some(rest)
}

/// Reads a part of a body; `at` is its path.
///
/// # Errors
/// Those of [`parse`].
pub fn parse_part<'de, T: Deserialize<'de>>(
    part: &'de RawValue,
    at: &str,
    unsupported: Unsupported,
) -> Result<T, InvalidRequest> {
    if let Ok(value) = serde_json::from_str(part.get()) {
        return Ok(value);
    }
    let mut deserializer = serde_json::Deserializer::from_str(part.get());
    serde_path_to_error::deserialize(&mut deserializer)
        .map_err(|error| explain(&join(at, &path_of(&error)), error.inner(), unsupported))
}

/// The path of a member.
#[must_use]
pub fn join(parent: &str, member: &str) -> String {
    match (parent, member) {
        ("", member) => member.to_owned(),
        (parent, "") => parent.to_owned(),
        (parent, member) if member.starts_with('[') => format!("{parent}{member}"),
        (parent, member) => format!("{parent}.{member}"),
    }
}

fn path_of(error: &serde_path_to_error::Error<serde_json::Error>) -> String {
    let path = error.path().to_string();
    if path == "." { String::new() } else { path }
}

fn explain(path: &str, error: &serde_json::Error, unsupported: Unsupported) -> InvalidRequest {
    let path = shortened(path, LONGEST_PATH);
    let text = error.to_string();
    if error.classify() != Category::Data {
        return InvalidRequest {
            message: format!("the request's body is not JSON: {text}"),
            parameter: None,
            code: InvalidCode::Value,
        };
    }
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    if let Some(rest) = text.strip_prefix("unknown field `") {
        // The name is the client's, and may look like the rest; the known names have no such part.
        let end = rest.rsplit_once("`, expected ").or_else(|| rest.rsplit_once("`, there are no fields"));
        let (name, known) = end.unwrap_or((rest, ""));
        return unknown(path, name, known, unsupported);
    }
    if let Some(name) = text.strip_prefix("missing field `") {
        return InvalidRequest::missing(&join(path, name.trim_end_matches('`')));
    }
    if let Some(name) = text.strip_prefix("duplicate field `") {
        let name = join_unless_there(path, name.trim_end_matches('`'));
        let message = format!("`{name}` appears twice");
        return InvalidRequest::new(name, message);
    }
    let subject = if path.is_empty() { "the request's body".to_owned() } else { format!("`{path}`") };
    let (message, code) = match (text.split_once(": "), text.split_once(", expected ")) {
        (Some(("invalid type" | "invalid value", _)), Some((found, expected))) => {
            let found = found.split_once(": ").map_or(found, |(_, found)| found);
            let message = format!("{subject} is {}: it has to be {}", found_value(found), expected_value(expected));
            (message, InvalidCode::Type)
        }
        _ => (format!("{subject}: {}", shortened(text, LONGEST_REASON)), InvalidCode::Value),
    };
    InvalidRequest { message, parameter: (!path.is_empty()).then(|| path.to_owned()), code }
}

fn unknown(path: &str, name: &str, known: &str, unsupported: Unsupported) -> InvalidRequest {
    let parameter = join_unless_there(path, name);
    if let Some((_, reason)) = unsupported.iter().find(|(unsupported, _)| *unsupported == name) {
        return InvalidRequest::unsupported(parameter, format!("`{name}` is not supported: {reason}"));
    }
    let name = shortened(name, LONGEST_NAME);
    let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect(); // between backticks
    let is_outermost = parameter == name;
    let same = if is_outermost { other_api::same(name, &known) } else { None };
    let routes = if is_outermost { other_api::routes(name) } else { None };
    // A name that is right elsewhere is no slip for one that is near.
    let advice = match (same, routes, nearest(name, &known)) {
        (Some(meant), _, _) | (None, None, Some(meant)) => format!("did you mean `{meant}`?"),
        (None, Some(routes), _) => format!("it belongs to {routes}"),
        (None, None, None) => "leave it out".to_owned(),
    };
    let parameter = shortened(&parameter, LONGEST_PATH).to_owned();
    InvalidRequest::new(parameter, format!("there is no parameter `{name}`: {advice}")).with_code(InvalidCode::Unknown)
}

/// The path of a member, whose name the path has already or not.
fn join_unless_there(path: &str, name: &str) -> String {
    let is_there = path.strip_suffix(name).is_some_and(|parent| parent.is_empty() || parent.ends_with('.'));
    if is_there { path.to_owned() } else { join(path, name) }
}

/// The nearest of the names, if one is near.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let near = known.iter().copied().map(|known| (strsim::damerau_levenshtein(name, known), known));
    let (distance, nearest) = near.min_by_key(|(distance, _)| *distance)?;
    let length = name.chars().count();
    (distance < length && distance <= (length / 3).clamp(1, 3)).then_some(nearest)
}

/// Description of a value that was found; texts are not repeated.
fn found_value(found: &str) -> String {
    match found.split_once(' ') {
        _ if found == "map" => "an object".to_owned(),
        _ if found == "sequence" => "an array".to_owned(),
        Some(("string", _)) => "a string".to_owned(),
        Some(("boolean" | "integer", value)) => value.trim_matches('`').to_owned(),
        Some(("floating", value)) => value.trim_start_matches("point ").trim_matches('`').to_owned(),
        _ => shortened(found, LONGEST_NAME).to_owned(),
    }
}

/// Name of a type in words of JSON.
fn expected_value(expected: &str) -> &str {
    match expected {
        "f32" | "f64" => "a number",
        "u8" => "an integer from 0 to 255",
        "u32" => "an integer from 0 to 4294967295",
        "u64" => "an integer from 0",
        "i64" | "i32" => "an integer",
        "a sequence" => "an array",
        "a map" => "an object",
        text if text.starts_with("struct ") => "an object",
        text if text.starts_with("tuple ") || text.starts_with("a tuple ") => "an array",
        text => shortened(text, LONGEST_REASON),
    }
}

/// The text up to a length, at the border of a character.
fn shortened(text: &str, most: usize) -> &str {
    text.get(..text.floor_char_boundary(most)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "not all of it is looked at")]
    struct Body {
        model: String,
        #[serde(default)]
        temperature: Option<f32>,
        #[serde(default)]
        count: Option<u32>,
        #[serde(default)]
        parts: Vec<Part>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only errors are looked at")]
    struct Part {
        text: String,
    }

    const UNSUPPORTED: Unsupported = &[("audio", "no model here answers with sound")];

    #[test]
    fn an_unsupported_parameter_that_is_null_asks_for_nothing() {
        let read = |json: &str| parse::<Body>(json.as_bytes(), UNSUPPORTED).map(|body| (body.model, body.count));
        for json in [
            r#"{"model": "m", "audio": null, "count": 3}"#,
            r#"{"audio":null,"model":"m","count":3}"#,
            r#"{"model": "m", "count": 3, "a\u0075dio": null }"#,
        ] {
            assert_eq!(read(json).unwrap(), ("m".to_owned(), Some(3)), "{json}");
        }
        for (json, parameter) in [
            (r#"{"model": "m", "audio": {}}"#, "audio"),
            (r#"{"model": "m", "audio": null, "video": null}"#, "video"),
            (r#"{"model": "m", "audio": null, "count": "3"}"#, "count"),
        ] {
            assert_eq!(read(json).unwrap_err().parameter.as_deref(), Some(parameter), "{json}");
        }
        assert!(read("null").is_err());
    }

    #[test]
    fn errors_name_the_parameter() {
        let table = [
            (r#"{"#, None, "the request's body is not JSON: EOF while parsing an object at line 1 column 1"),
            (r#"{"model": "m"} x"#, None, "the request's body is not JSON: trailing characters at line 1 column 16"),
            (r#"[]"#, None, "the request's body is an array: it has to be an object"),
            (r#"7"#, None, "the request's body is 7: it has to be an object"),
            (r#"{}"#, Some("model"), "`model` is missing"),
            (r#"{"model": 1}"#, Some("model"), "`model` is 1: it has to be a string"),
            (r#"{"model": "m", "model": "m"}"#, Some("model"), "`model` appears twice"),
            (
                r#"{"model": "m", "temperature": "hot"}"#,
                Some("temperature"),
                "`temperature` is a string: it has to be a number",
            ),
            (
                r#"{"model": "m", "count": -1}"#,
                Some("count"),
                "`count` is -1: it has to be an integer from 0 to 4294967295",
            ),
            (
                r#"{"model": "m", "count": 1.5}"#,
                Some("count"),
                "`count` is 1.5: it has to be an integer from 0 to 4294967295",
            ),
            (r#"{"model": "m", "parts": {}}"#, Some("parts"), "`parts` is an object: it has to be an array"),
            (
                r#"{"model": "m", "parts": [{"text": ""}, {"text": null}]}"#,
                Some("parts[1].text"),
                "`parts[1].text` is null: it has to be a string",
            ),
            (r#"{"model": "m", "parts": [{}]}"#, Some("parts[0].text"), "`parts[0].text` is missing"),
            (
                r#"{"model": "m", "parts": [{"txt": ""}]}"#,
                Some("parts[0].txt"),
                "there is no parameter `txt`: did you mean `text`?",
            ),
            (
                r#"{"model": "m", "temprature": 1}"#,
                Some("temprature"),
                "there is no parameter `temprature`: did you mean `temperature`?",
            ),
            (
                r#"{"model": "m", "documents": []}"#,
                Some("documents"),
                "there is no parameter `documents`: it belongs to `/v1/chat/completions` and `/v1/rerank`",
            ),
            (
                r#"{"model": "m", "parts": [{"documents": ""}]}"#,
                Some("parts[0].documents"),
                "there is no parameter `documents`: leave it out",
            ),
            (r#"{"model": "m", "foo": 1}"#, Some("foo"), "there is no parameter `foo`: leave it out"),
            (r#"{"model": "m", "": 1}"#, Some(""), "there is no parameter ``: leave it out"),
            (
                r#"{"model": "m", "a`, expected `b": 1}"#,
                Some("a`, expected `b"),
                "there is no parameter `a`, expected `b`: leave it out",
            ),
            (
                r#"{"model": "m", "text": 1}"#,
                Some("text"),
                "there is no parameter `text`: it belongs to `/v1/responses`, and `/ai/run` with a model that makes embeddings",
            ),
            (
                r#"{"model": "m", "audio": {}}"#,
                Some("audio"),
                "`audio` is not supported: no model here answers with sound",
            ),
        ];
        for (body, parameter, message) in table {
            let error = parse::<Body>(body.as_bytes(), UNSUPPORTED).unwrap_err();
            assert_eq!((error.parameter.as_deref(), error.message.as_str()), (parameter, message), "{body}");
        }
    }

    #[test]
    fn errors_are_short_whatever_the_body_has() {
        let long = "é".repeat(100_000);
        for body in [
            format!(r#"{{"model": "m", "{long}": 1}}"#),
            format!(r#"{{"model": "m", "temperature": "{long}"}}"#),
            format!(r#"{{"model": "m", "parts": [{{"{long}": 1}}]}}"#),
        ] {
            let error = parse::<Body>(body.as_bytes(), &[]).unwrap_err();
            let parameter = error.parameter.unwrap();
            assert!(error.message.len() < 300 && parameter.len() < 300, "{}, {}", error.message.len(), parameter.len());
        }
    }

    #[test]
    fn paths_of_parts_begin_with_that_of_the_whole() {
        let part: Box<RawValue> = serde_json::from_str(r#"{"text": 1}"#).unwrap();
        let error = parse_part::<Part>(&part, "tools[3]", &[]).unwrap_err();
        assert_eq!(error.parameter.as_deref(), Some("tools[3].text"));
    }
}
