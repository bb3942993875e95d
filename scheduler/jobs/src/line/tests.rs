//! Tables of good and bad lines.

use super::*;

fn openai() -> Form {
    Form::OpenAi { endpoint: "/v1/embeddings".into() }
}

fn good(changes: &[(&str, &str)]) -> String {
    let mut line =
        r#"{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "m", "input": "x"}}"#
            .to_owned();
    for (from, to) in changes {
        assert!(line.contains(from));
        line = line.replace(from, to);
    }
    line
}

#[test]
fn faults_are_named() {
    let table = [
        ("", "invalid_json_line", None),
        ("{", "invalid_json_line", None),
        ("[\"a\", \"POST\", \"/v1/embeddings\", {}]", "invalid_json_line", None),
        (&good(&[("\"method\"", "\"custom_id\"")]), "invalid_json_line", None),
        (&good(&[("\"custom_id\": \"a\", ", "")]), "missing_required_parameter", Some("custom_id")),
        (&good(&[("\"a\"", "1")]), "invalid_type", Some("custom_id")),
        (&good(&[("\"a\"", "\"\"")]), "invalid_value", Some("custom_id")),
        (&good(&[("\"method\": \"POST\", ", "")]), "missing_required_parameter", Some("method")),
        (&good(&[("POST", "GET")]), "invalid_method", Some("method")),
        (&good(&[("/v1/embeddings", "/v1/chat/completions")]), "mismatched_endpoint", Some("url")),
        (&good(&[("\"body\"", "\"other\"")]), "missing_required_parameter", Some("body")),
        (&good(&[("{\"model\": \"m\", \"input\": \"x\"}", "[1]")]), "invalid_type", Some("body")),
        (&good(&[("\"model\": \"m\", ", "")]), "missing_required_parameter", Some("body.model")),
        (&good(&[("\"m\"", "[]")]), "invalid_type", Some("body.model")),
        (&good(&[("\"m\"", &format!("\"{}\"", "m".repeat(513)))]), "invalid_value", Some("body.model")),
    ];
    for (line, code, param) in table {
        let fault = check(&openai(), line.as_bytes()).unwrap_err();
        assert_eq!((fault.code, fault.param), (code, param), "{line}");
    }
    assert_eq!(check(&openai(), b"{\"custom_id\": \"\xff\"}").unwrap_err().message, "The line is not UTF-8.");
}

#[test]
fn parts_are_handed_out_as_they_are() {
    let line = good(&[("\"a\"", r#""\u0061\n""#), ("\"x\"", "1.0, \"foo\": 1e2")]);
    let checked = check(&openai(), line.as_bytes()).unwrap();
    assert_eq!(checked, Checked { custom_id: Some("a\n".into()), model: "m".into(), name: 10 });
    assert_eq!(name(&openai(), line.as_bytes()), r#""\u0061\n""#);
    let body = body(&openai(), line.into_bytes()).unwrap();
    assert_eq!(String::from_utf8(body).unwrap(), r#"{"model": "m", "input": 1.0, "foo": 1e2}"#);

    let form = Form::WorkersAi { model: "@cf/a/b".into() };
    let line = r#"{"prompt": "x", "external_reference": "r1", "contexts": [{"external_reference": 2}]}"#;
    let expected = Checked { custom_id: None, model: "@cf/a/b".into(), name: 0 };
    assert_eq!(check(&form, line.as_bytes()), Ok(expected));
    assert_eq!(name(&form, line.as_bytes()), "\"r1\"");
    assert_eq!(name(&form, b"{}"), "null");
    assert_eq!(super::body(&form, line.into()), Some(line.into()), "unknown fields pass untouched");
    assert_eq!(check(&form, b"[]").unwrap_err().code, "invalid_json_line");
}

#[test]
fn bodies_become_one_line_of_json() {
    let table = [
        ("{\n  \"a\": \"b\\n\"\r\n}", "{   \"a\": \"b\\n\"  }"),
        ("Internal\nError", "\"Internal\\nError\""),
        ("", "\"\""),
        ("{\"a\":1}{", "\"{\\\"a\\\":1}{\""),
    ];
    for (body, expected) in table {
        assert_eq!(String::from_utf8(as_json(body.into())).unwrap(), expected);
    }
    assert_eq!(String::from_utf8(as_json(vec![0xff])).unwrap(), "\"\u{fffd}\"");
}
