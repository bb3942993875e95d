//! Tables and properties of whole input files.

use super::*;
use proptest::prelude::*;
use std::io::{BufReader, Cursor};

fn form() -> Form {
    Form::OpenAi { endpoint: "/v1/embeddings".into() }
}

fn line(id: &str, model: &str) -> String {
    format!(r#"{{"custom_id":"{id}","method":"POST","url":"/v1/embeddings","body":{{"model":"{model}"}}}}"#)
}

fn limits() -> Limits {
    Limits { items: 4, line: 200, models: 2, ..Limits::default() }
}

fn of(text: &str) -> Result<Validated, Vec<LineError>> {
    // A tiny buffer, so that every line crosses its end.
    validate(BufReader::with_capacity(7, Cursor::new(text)), &form(), &limits()).unwrap()
}

fn codes(text: &str) -> Vec<(String, Option<u32>)> {
    of(text).unwrap_err().into_iter().map(|error| (error.code, error.line)).collect()
}

#[test]
fn places_and_models_are_found() {
    let (a, b, c) = (line("a", "x"), line("b", "y"), line("c", "x"));
    let text = format!("\u{feff}{a}\r\n\n  \n{b}\n{c}");
    let found = of(&text).unwrap();
    assert_eq!(found.models, ["x", "y"]);
    let texts: Vec<_> = found
        .lines
        .iter()
        .map(|line| (line.number, line.model, &text[line.offset as usize..][..line.length as usize]))
        .collect();
    assert_eq!(texts, [(1, 0, a.as_str()), (4, 1, b.as_str()), (5, 0, c.as_str())]);
}

#[test]
fn faults_have_their_lines() {
    let table = [
        (String::new(), vec![("empty_file", None)]),
        ("\n\r\n \n".into(), vec![("empty_file", None)]),
        (
            format!("{}\n{{\n{}\n", line("a", "x"), line("a", "x")),
            vec![("invalid_json_line", Some(2)), ("duplicate_custom_id", Some(3))],
        ),
        (format!("{}\n{}\n{}", line("a", "x"), line("b", "y"), line("c", "z")), vec![("too_many_models", Some(3))]),
        (format!("{}\n{}", line(&"a".repeat(300), "x"), line("b", "x")), vec![("line_too_long", Some(1))]),
        (format!("\n{}", " ".repeat(5000)), vec![("line_too_long", Some(2))]),
        ((0..9).map(|id| line(&id.to_string(), "x") + "\n").collect(), vec![("too_many_requests", Some(5))]),
        ("\n".repeat(9), vec![("too_many_empty_lines", Some(5))]),
        ("x\n".repeat(300), (1..=100).map(|line| ("invalid_json_line", Some(line))).collect()),
    ];
    for (text, expected) in table {
        let expected: Vec<_> = expected.into_iter().map(|(code, line)| (code.to_owned(), line)).collect();
        assert_eq!(codes(&text), expected, "{text}");
    }
    let error = &of(&format!("{}\n\n{}", line("a", "x"), line("\\u0061", "x"))).unwrap_err()[0];
    assert_eq!((error.message.as_str(), error.param.as_deref()), ("custom_id is that of line 1.", Some("custom_id")));
}

#[test]
fn a_line_of_exactly_the_bound_is_taken() {
    let padding = 200 - line("", "x").len();
    let (longest, longer) = (line(&"a".repeat(padding), "x"), line(&"b".repeat(padding + 1), "x"));
    for end in ["", "\n", "\r\n"] {
        assert_eq!(of(&format!("{longest}{end}")).unwrap().lines[0].length, 200);
        assert_eq!(codes(&format!("{longer}{end}")), [("line_too_long".into(), Some(1))]);
    }
}

proptest! {
    /// Any upload has an answer, and the places of a good file are the lines themselves.
    #[test]
    fn any_bytes_have_an_answer(parts in proptest::collection::vec(0..7_usize, 0..8), noise in any::<Vec<u8>>()) {
        let mut text = Vec::new();
        for (at, part) in parts.iter().enumerate() {
            let good = line(&at.to_string(), "x");
            let piece: &[u8] = match part {
                0..4 => good.as_bytes(),
                4 => b"\r",
                5 => b"",
                _ => &noise,
            };
            text.extend_from_slice(piece);
            text.push(b'\n');
        }
        match validate(BufReader::with_capacity(5, Cursor::new(&text)), &form(), &limits()).unwrap() {
            Ok(found) => {
                prop_assert!((1..=4).contains(&found.lines.len()));
                for line in found.lines {
                    let piece = &text[line.offset as usize..][..line.length as usize];
                    prop_assert!(line::check(&form(), piece).is_ok());
                }
            }
            Err(errors) => prop_assert!((1..=MAX_ERRORS).contains(&errors.len())),
        }
    }
}
