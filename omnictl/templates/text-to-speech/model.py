"""MODEL_NAME: speaks a text. Here each letter is a tone; put your model in the place of `speak`.

The node serves it at `/v1/audio/speech` and `/ai/run`.
"""

import array
import io
import math
import sys
import wave

from omni import Response, TextToSpeech, errors

RATE = 16_000
VOICES = {"low": 110.0, "high": 220.0}


def handle_request(request: TextToSpeech, context):
    pitch = VOICES.get(request.voice or "low")
    if pitch is None:
        raise errors.BadRequest(f"there is no voice {request.voice!r}: {', '.join(VOICES)}", "voice")
    samples = array.array("h", speak(request.text, pitch, request.speed or 1.0))
    if sys.byteorder == "big":
        samples.byteswap()
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    # A client that asks for nothing asks for MP3: the answer says what it is.
    return Response.audio(out.getvalue(), "audio/wav")


def speak(text, pitch, speed):
    """Samples: a tone of 80 ms for each letter, a pause for anything else."""
    length = int(RATE * 0.08 / speed)
    for letter in text.lower():
        step = 2 * math.pi * pitch * 2 ** ((ord(letter) - ord("a")) / 26) / RATE if "a" <= letter <= "z" else 0.0
        for at in range(length):
            yield int(8000 * math.sin(step * at))
