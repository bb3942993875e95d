"""Tests of MODEL_NAME: python -m pytest. The client calls the model as a node does; no node is needed."""

import io
import wave
from pathlib import Path

import pytest
from omni import errors
from omni.testing import TestClient


@pytest.fixture(scope="module")
def client():
    with TestClient(Path(__file__).parent) as client:
        yield client


def samples(sound):
    with wave.open(io.BytesIO(sound)) as file:
        return file.readframes(file.getnframes())


def test_speaks_as_long_as_the_text_is(client):
    assert len(samples(client.speak("moo"))) == 3 * len(samples(client.speak("m")))
    assert len(samples(client.speak("m", speed=2.0))) * 2 == len(samples(client.speak("m")))


def test_voices_differ(client):
    assert client.speak("moo", voice="low") != client.speak("moo", voice="high")
    with pytest.raises(errors.BadRequest, match="low, high"):
        client.speak("moo", voice="cow")
