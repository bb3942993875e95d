"""Real weights hear a real voice: the recording that the package brings, the beginning of A Tale of Two Cities."""

import io
import wave
from pathlib import Path

import pytest
from moonshine_voice import get_model_path
from omni import errors
from omni.testing import TestClient

RECORDING = Path(get_model_path("tiny-en")).parent / "two_cities.wav"
SECONDS = 5


@pytest.fixture(scope="module")
def client():
    with TestClient(".") as client:
        yield client


def wav(samples, rate=16_000, channels=1, width=2):
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        file.writeframes(samples)
    return out.getvalue()


def beginning(channels=1):
    """The first seconds of the recording."""
    with wave.open(str(RECORDING)) as file:
        rate = file.getframerate()
        samples = file.readframes(SECONDS * rate)
    both = b"".join(samples[at : at + 2] * channels for at in range(0, len(samples), 2))
    return wav(both, rate, channels)


@pytest.mark.parametrize("channels", [1, 2])
def test_the_words_of_a_recording(client, channels):
    heard = client.transcribe(beginning(channels))
    assert heard.text.lower().startswith("it was the best of times, it was the worst of times")
    assert (heard.language, heard.duration) == ("en", SECONDS)
    assert 0 < heard.segments[0].start < heard.segments[0].end <= SECONDS


@pytest.mark.parametrize("samples", [b"", b"\0\0" * 16_000])
def test_silence_has_no_words(client, samples):
    assert client.transcribe(wav(samples)).text == ""


@pytest.mark.parametrize("body", [b"", b"moo", wav(b"\0" * 100, width=1), beginning()[:40]])
def test_a_body_that_is_no_recording_is_refused(client, body):
    with pytest.raises(errors.BadRequest):
        client.transcribe(body)


def test_other_languages_are_refused(client):
    with pytest.raises(errors.BadRequest, match="English"):
        client.transcribe(beginning(), language="de")
