//! Tests of requests with sound and of their answers.

use super::*;
use bytes::Bytes;

fn request(fields: &[(&str, &str)]) -> TranscriptionRequest {
    transcription_request(fields.iter().copied(), false).unwrap()
}

fn transcript() -> Transcript {
    let segment = |start, end, text: &str| Segment { start, end, text: text.into() };
    Transcript {
        text: "Hi. There --> you".into(),
        language: Some("english".into()),
        duration: Some(3725.5),
        segments: vec![segment(0.0, 1.25, " Hi."), segment(1.25, 3725.5, "There\n\n--> you")],
    }
}

#[test]
fn answers_of_all_formats() {
    let mut text = String::new();
    for format in ["json", "text", "srt", "verbose_json", "vtt"] {
        let request = request(&[("model", "whisper"), ("response_format", format)]);
        let (kind, body) = transcription_answer(&request, &transcript());
        text += &format!("## {format}: {kind}\n{}\n", String::from_utf8(body.to_vec()).unwrap());
    }
    let bare = Transcript { text: "Hi".into(), ..Transcript::default() };
    for format in ["srt", "vtt", "verbose_json"] {
        let request = request(&[("model", "whisper"), ("response_format", format), ("language", "en")]);
        let (_, body) = transcription_answer(&request, &bare);
        text += &format!("## {format}, text alone\n{}\n", String::from_utf8(body.to_vec()).unwrap());
    }
    insta::assert_snapshot!(text);
}

#[test]
fn fields_of_a_form_are_read() {
    let fields = [
        ("model", "m"),
        ("language", "de"),
        ("prompt", "Bern"),
        ("temperature", "0.5"),
        ("timestamp_granularities[]", "segment"),
        ("stream", "false"),
    ];
    let expected = TranscriptionRequest {
        model: "m".into(),
        language: Some("de".into()),
        prompt: Some("Bern".into()),
        response_format: TranscriptionFormat::Json,
        temperature: Some(0.5),
        translate: false,
    };
    assert_eq!(request(&fields), expected);
    assert!(transcription_request([("model", "m")], true).unwrap().translate);
}

#[test]
fn a_form_has_one_file() {
    let part = |disposition: &str, content: &str| {
        format!("--b\r\nContent-Disposition: form-data; {disposition}\r\nContent-Type: audio/wav\r\n\r\n{content}\r\n")
    };
    let read = |parts: &[(&str, &str)]| {
        let parts: String = parts.iter().map(|(disposition, content)| part(disposition, content)).collect();
        transcription_form("multipart/form-data; boundary=b", &Bytes::from(format!("{parts}--b--\r\n")), false)
    };
    let (model, file) = (("name=\"model\"", "whisper"), ("name=\"file\"; filename=\"a.wav\"", "RIFF"));
    let (request, audio) = read(&[file, model]).unwrap();
    let expected =
        AudioFile { content: "RIFF".into(), name: Some("a.wav".into()), media_type: Some("audio/wav".into()) };
    assert_eq!((request.model.as_str(), audio), ("whisper", expected));
    let other = ("name=\"image\"; filename=\"a.png\"", "PNG");
    for (parts, expected) in [
        (&[model][..], "`file` is missing"),
        (&[file], "`model` is missing"),
        (&[model, ("name=\"file\"", "")], "`file` is empty"),
        (&[model, file, file], "`file` appears twice"),
        (&[model, file, other], "there is no parameter `image`: leave it out"),
        (&[other, model], "there is no parameter `image`: leave it out"),
    ] {
        assert_eq!(read(parts).unwrap_err().message, expected);
    }
    let error = transcription_form("application/json", &Bytes::from_static(b"{}"), false).unwrap_err();
    assert_eq!(error.message, "the request's body is not a form: its `content-type` has to be `multipart/form-data`");
}

#[test]
fn refused_forms() {
    let message = |fields: &[(&str, &str)], translate| {
        transcription_request(fields.iter().copied(), translate).unwrap_err().message
    };
    for (field, expected) in [
        (("temperature", "hot"), "`temperature` has to be a number"),
        (("temperature", "2"), "`temperature` is 2: it has to be from 0 to 1"),
        (
            ("response_format", "diarized_json"),
            "`response_format` has to be `json`, `text`, `srt`, `verbose_json` or `vtt`",
        ),
        (("timestamp_granularities[]", "word"), "words have no timestamps here: ask for `segment`"),
        (("stream", "true"), "the text comes as a whole: leave `stream` out"),
        (("include[]", "logprobs"), "`include[]` is not supported: log probabilities are not computed"),
        (("langauge", "de"), "there is no parameter `langauge`: leave it out"),
        (("language", ""), "`language` is empty"),
    ] {
        assert_eq!(message(&[("model", "m"), field], false), expected);
    }
    assert_eq!(message(&[("language", "de")], false), "`model` is missing");
    assert_eq!(message(&[("model", "m"), ("language", "de")], true), "there is no parameter `language`: leave it out");
}

#[test]
fn speech_is_asked_for_in_a_format() {
    let read = |body: &str| speech_request(body.as_bytes());
    let speech =
        read(r#"{"model": "m", "input": "hi", "voice": "ann", "response_format": "wav", "speed": 1.5}"#).unwrap();
    assert_eq!((speech.voice.as_deref(), speech.format.media_type(), speech.speed), (Some("ann"), "audio/wav", 1.5));
    assert_eq!(read(r#"{"model": "m", "input": "hi"}"#).unwrap().format.name(), "mp3");
    for (parameters, expected) in [
        (r#""input": """#, "`input` is empty"),
        (r#""input": "a", "speed": 5"#, "`speed` is 5: it has to be from 0.25 to 4"),
        (r#""input": "a", "voice": {"id": "v"}"#, "voices are not stored: send the name of one"),
        (
            r#""input": "a", "stream_format": "sse""#,
            "sound is sent as bytes: send `audio`, or leave `stream_format` out",
        ),
        (r#""input": "a", "instructions": "x""#, "`instructions` is not supported: describe the voice by `voice`"),
    ] {
        assert_eq!(read(&format!(r#"{{"model": "m", {parameters}}}"#)).unwrap_err().message, expected);
    }
}
