"""MODEL_NAME: writes down what is said in a recording. Here it tells how long the recording is; put your model in the
place of `transcribe`.

The node serves it at `/v1/audio/transcriptions` and `/ai/run`.
"""

import io
import wave

from omni import Segment, SpeechToText, Transcription, errors


def handle_request(request: SpeechToText, context):
    if request.translate:
        raise errors.BadRequest("this model does not translate", "task")
    try:
        with wave.open(io.BytesIO(request.audio.bytes)) as file:
            seconds = file.getnframes() / file.getframerate()
            samples = file.readframes(file.getnframes())
    except (wave.Error, EOFError, ZeroDivisionError) as err:
        raise errors.BadRequest(f"this model hears WAV files: {str(err) or 'it ends too early'}", "file") from None
    text = transcribe(samples, seconds)
    return Transcription(text, request.language or "en", seconds, [Segment(0, seconds, text)])


def transcribe(samples, seconds):
    return f"{seconds:.1f} seconds of {'sound' if any(samples) else 'silence'}"
