//! Text of a recording, as models report it.

/// Text of a recording.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Transcript {
    /// Text.
    pub text: String,
    /// Language, as the model names it.
    pub language: Option<String>,
    /// Length of the recording, in seconds.
    pub duration: Option<f64>,
    /// Parts, in order.
    pub segments: Vec<Segment>,
}

/// Part of a transcript.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Segment {
    /// Beginning, in seconds.
    pub start: f64,
    /// End, in seconds.
    pub end: f64,
    /// Text.
    pub text: String,
}
