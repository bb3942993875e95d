"""English speech to text: Moonshine tiny (27 million parameters), with its weights in its package from PyPI.

Input:  a WAV file of 16-bit samples, at most 4.8 million of them: five minutes at 16 kHz
Answer: the text, with the seconds at which each sentence begins and ends
"""

import io
import sys
import wave
from array import array

from moonshine_voice import ModelArch, Transcriber, get_model_path
from omni import Segment, SpeechToText, Transcription, errors

MOST_SAMPLES = 4_800_000
LARGEST = 32_768  # of a 16-bit sample

transcriber = None


def setup(context):
    global transcriber
    transcriber = Transcriber(get_model_path("tiny-en"), ModelArch.TINY)


def handle_request(request: SpeechToText, context):
    if request.language not in (None, "en", "english"):
        raise errors.BadRequest("this model knows English only", "language")
    samples, rate = read(request.audio.bytes)
    duration = len(samples) / rate
    if not samples:
        return Transcription("", "en", duration)
    lines = transcriber.transcribe_without_streaming(samples, rate).lines
    segments = [Segment(line.start_time, line.start_time + line.duration, line.text) for line in lines]
    context.usage(audio_seconds=duration)
    return Transcription(" ".join(line.text for line in lines), "en", duration, segments)


def read(data):
    """Samples from -1 to 1, all channels in one, and their number in a second."""
    try:
        with wave.open(io.BytesIO(data)) as file:
            rate, channels, width, count = (
                file.getframerate(),
                file.getnchannels(),
                file.getsampwidth(),
                file.getnframes(),
            )
            if width != array("h").itemsize or not rate:
                raise errors.BadRequest(f"the file has samples of {8 * width} bits: 16 are needed", "file")
            if count * channels > MOST_SAMPLES:
                raise errors.BadRequest(f"the file has more than {MOST_SAMPLES} samples: cut it", "file")
            samples = array("h", file.readframes(count))
    except (wave.Error, EOFError, ValueError) as err:
        raise errors.BadRequest(f"the file is no WAV file that can be read: {err}", "file") from None
    if sys.byteorder == "big":
        samples.byteswap()
    scale = LARGEST * channels
    return [sum(samples[at : at + channels]) / scale for at in range(0, len(samples), channels)], rate
