//! Captions of a transcript, in the SubRip and WebVTT forms.

use crate::audio::transcript::{Segment, Transcript};
use std::fmt::Write;

/// Captions in the SubRip form.
pub(crate) fn srt(transcript: &Transcript) -> String {
    let mut out = String::new();
    for (index, segment) in segments(transcript).iter().enumerate() {
        let (start, end) = (time(segment.start, ','), time(segment.end, ','));
        let _ = write!(out, "{}\n{start} --> {end}\n{}\n\n", index + 1, one_block(&segment.text));
    }
    out
}

/// Captions in the WebVTT form.
#[must_use]
pub fn vtt(transcript: &Transcript) -> String {
    let mut out = "WEBVTT\n\n".to_owned();
    for segment in segments(transcript).iter() {
        let (start, end) = (time(segment.start, '.'), time(segment.end, '.'));
        let _ = write!(out, "{start} --> {end}\n{}\n\n", one_block(&segment.text).replace("-->", "->"));
    }
    out
}

/// The segments, or the whole text as one of them where the model reports none.
fn segments(transcript: &Transcript) -> std::borrow::Cow<'_, [Segment]> {
    if transcript.segments.is_empty() && !transcript.text.is_empty() {
        let end = transcript.duration.unwrap_or(0.0);
        return vec![Segment { start: 0.0, end, text: transcript.text.clone() }].into();
    }
    transcript.segments.as_slice().into()
}

/// Text without empty lines, which would end a caption.
fn one_block(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

fn time(seconds: f64, separator: char) -> String {
    // A negative number or none becomes 0, a large one the largest.
    let all = (seconds * 1000.0).round().max(0.0) as u64;
    let (hours, minutes) = (all / 3_600_000, all / 60_000 % 60);
    format!("{hours:02}:{minutes:02}:{:02}{separator}{:03}", all / 1000 % 60, all % 1000)
}
