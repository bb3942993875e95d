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


def recording(samples):
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(samples)
    return out.getvalue()


def test_hears_a_recording(client):
    heard = client.transcribe(recording(b"\1\2" * 4000), language="de")
    assert (heard.text, heard.language, heard.duration) == ("0.5 seconds of sound", "de", 0.5)
    assert client.transcribe(recording(bytes(16000))).text == "1.0 seconds of silence"


def test_other_files_and_translations_are_refused(client):
    with pytest.raises(errors.BadRequest, match="WAV"):
        client.transcribe(b"no sound")
    with pytest.raises(errors.BadRequest, match="translate"):
        client.transcribe(recording(b""), translate=True)
