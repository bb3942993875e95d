//! Sound: `/v1/audio/transcriptions`, `/v1/audio/translations` and `/v1/audio/speech`.

mod captions;
mod speech;
mod transcript;
mod transcription;

pub use captions::vtt;
pub(crate) use speech::SpeechBody;
pub use speech::{SpeechFormat, SpeechRequest, speech_request};
pub use transcript::{Segment, Transcript};
pub use transcription::{
    AudioFile, Transcription, TranscriptionFormat, TranscriptionRequest, transcription_answer, transcription_form,
    transcription_request,
};

#[cfg(test)]
mod tests;
