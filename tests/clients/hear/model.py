"""Transcriptions that are easy to check: the length of the recording, its first bytes and what the client has said."""

from omni import Segment, SpeechToText, Transcription


def handle_request(request: SpeechToText, context):
    data = b"".join(request.audio.stream())
    text = f"{len(data)} bytes of {data[:4]!r} in {request.language}"
    text = f"translated {text}" if request.translate else text
    return Transcription(text, request.language, 1.5, [Segment(0.0, 1.5, text)])
