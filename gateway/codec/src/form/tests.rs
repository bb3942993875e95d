//! Tests of forms: those of clients, those that are cut off, and any bytes.

use super::*;
use proptest::prelude::*;

const TYPE: &str = "multipart/form-data; boundary=b1";

fn parse(body: &[u8]) -> Result<Form<'_>, InvalidRequest> {
    Form::parse(TYPE, body, &["file"])
}

fn part(disposition: &str, content: &str) -> String {
    format!("--b1\r\nContent-Disposition: form-data; {disposition}\r\n\r\n{content}\r\n")
}

#[test]
fn fields_and_files_are_read() {
    let file = "--b1\r\ncontent-type: audio/mpeg\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a \\\"b\\\" C:\\x.mp3\"\r\n\r\n\r\n--b\r\n--b2\r\n";
    let body = format!("{}{file}{}--b1--\r\n", part("name=\"model\"", "whisper"), part("name=prompt", ""));
    let form = parse(body.as_bytes()).unwrap();
    assert_eq!(form.fields, [("model".to_owned(), "whisper"), ("prompt".to_owned(), "")]);
    let expected = FormFile {
        field: "file".into(),
        name: Some("a \"b\" C:\\x.mp3".into()),
        media_type: Some("audio/mpeg".into()),
        content: b"\r\n--b\r\n--b2",
    };
    assert_eq!(form.files, [expected]);
}

#[test]
fn a_file_may_have_no_name_and_no_bytes() {
    let body = format!("preamble\r\n{}--b1--", part("name=\"file\"", ""));
    let form = parse(body.as_bytes()).unwrap();
    assert_eq!((form.fields.len(), form.files[0].content, &form.files[0].name), (0, &b""[..], &None));
    let body = "--b1\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n--b1--";
    assert_eq!(parse(body.as_bytes()).unwrap().fields, [("a".to_owned(), "")]);
}

#[test]
fn boundaries_may_be_quoted() {
    let body = b"--a b;c\r\ncontent-disposition: form-data; name=\"x\"\r\n\r\n1\r\n--a b;c--";
    let form = Form::parse("Multipart/Form-Data; charset=x; boundary=\"a b;c\"", body, &[]).unwrap();
    assert_eq!(form.fields, [("x".to_owned(), "1")]);
    for media_type in [
        "application/json",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=\"",
        &format!("multipart/form-data; boundary={}", "x".repeat(71)),
    ] {
        assert!(Form::parse(media_type, body, &[]).is_err(), "{media_type}");
    }
    for second in ["boundary=b2", "Boundary=\"b1\"", "charset=x; boundary=b2"] {
        let error = Form::parse(&format!("{TYPE}; {second}"), b"--b1--", &[]).unwrap_err();
        assert!(error.message.ends_with("its `content-type` names several boundaries"), "{second}: {}", error.message);
    }
}

#[test]
fn refused_forms() {
    let long = format!("--b1\r\nx: {}\r\n\r\n1\r\n--b1--", "x".repeat(5000));
    let many = format!("{}--b1--", part("name=\"a[]\"", "1").repeat(129));
    let twice = format!("{}--b1--", part("name=\"a\"", "1").repeat(2));
    let encoded =
        "--b1\r\ncontent-disposition: form-data; name=a\r\ncontent-transfer-encoding: base64\r\n\r\n1\r\n--b1--";
    for (body, expected) in [
        (&b""[..], "its boundary is not there"),
        (b"--b2--", "its boundary is not there"),
        (b"--b1", "it is cut off"),
        (b"--b1\r\n", "it is cut off"),
        (b"--b1\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1", "it is cut off"),
        (b"--b1\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--b1", "it is cut off"),
        (b"--b1\r\nContent-Disposition: form-data\r\n\r\n1\r\n--b1--", "a part has no name"),
        (b"--b1\r\nContent-Disposition: attachment; name=\"a\"\r\n\r\n1\r\n--b1--", "a part has no name"),
        (long.as_bytes(), "the head of a part is longer than 4096 bytes"),
        (many.as_bytes(), "it has more than 128 parts"),
        (encoded.as_bytes(), "a part has a `content-transfer-encoding`"),
        (twice.as_bytes(), "`a` appears twice"),
        (b"--b1\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n\xff\r\n--b1--", "`a` has to be UTF-8 text"),
    ] {
        let error = parse(body).unwrap_err();
        assert!(error.message.contains(expected), "{}: {expected}", error.message);
    }
}

proptest! {
    #[test]
    fn any_content_survives(content: Vec<u8>, name in "[a-zé\"\\\\ ]{1,20}") {
        prop_assume!(!content.windows(6).any(|bytes| bytes == b"\r\n--b1") && !content.starts_with(b"--b1"));
        let escaped = name.replace('\\', "\\\\").replace('"', "\\\"");
        let mut body = format!("--b1\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{escaped}\"\r\n\r\n").into_bytes();
        body.extend(&content);
        body.extend(b"\r\n--b1--\r\n");
        let form = parse(&body).unwrap();
        prop_assert_eq!(form.files[0].content, content.as_slice());
        prop_assert_eq!(form.files[0].name.as_deref(), Some(name.as_str()));
    }

    #[test]
    fn no_bytes_break_the_reader(bytes: Vec<u8>, at in 0..200_usize) {
        let _ = parse(&bytes);
        let mut body = whole();
        let at = at.min(body.len());
        body.splice(at..at, bytes.iter().copied().take(4));
        let _ = parse(&body);
    }
}

fn whole() -> Vec<u8> {
    format!("{}{}--b1--", part("name=\"a\"", "1"), part("name=\"file\"; filename=\"x\"", "23")).into_bytes()
}

#[test]
fn a_form_that_is_cut_off_anywhere_is_refused() {
    let whole = whole();
    assert!(parse(&whole).is_ok());
    for length in 0..whole.len() {
        assert!(parse(&whole[..length]).is_err(), "{length}");
    }
}
