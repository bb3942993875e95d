"""`python -m omni run`: ranking, recordings, speech and images over `/ai/run`, as a node has them."""

from __future__ import annotations

import base64
import json

from local import ask, manifest_is_read, serving

pytestmark = manifest_is_read
RANK = """
from omni import *
def handle_request(request: Rerank, context):
    return [document.count(request.query) for document in request.documents]
"""
HEAR = """
from omni import *
def handle_request(request: SpeechToText, context):
    text = f"{request.audio.text} {request.language} {request.prompt} {request.translate}"
    return Transcription(text, "en", 1.5, [Segment(0, 1.5, text)])
"""
SAY = """
from omni import *
def handle_request(request: TextToSpeech, context):
    yield b"RIFF"
    yield f"{request.text} {request.voice} {request.format} {request.speed} {request.language}".encode()
"""
DRAW = """
from omni import *
def handle_request(request: TextToImage, context):
    told = f"{request.width}x{request.height} {request.steps} {request.guidance}"
    return b"\\x89PNG\\r\\n\\x1a\\n" + told.encode()
"""
JSON = {"accept": "application/json"}


def manifest(kind):
    return f'[model]\nkind = "{kind}"\n'


def result(got):
    status, kind, body = got
    assert (status, kind) == (200, "application/json"), body
    return json.loads(body)["result"]


def refusal(got):
    status, _, body = got
    assert status == 400
    return json.loads(body)["errors"][0]["message"]


def test_documents(tmp_path):
    with serving(tmp_path, RANK, manifest("rerank")) as server:
        contexts = [{"text": "moo"}, {"text": "baa"}]
        assert result(ask(server, {"query": "a", "contexts": contexts})) == {
            "response": [{"id": 1, "score": 2.0}, {"id": 0, "score": 0.0}]
        }
        assert len(result(ask(server, {"query": "a", "contexts": contexts, "top_k": 1}))["response"]) == 1
        assert "`contexts` is empty" in refusal(ask(server, {"query": "a", "contexts": []}))
        assert "`contexts[0].text` is missing" in refusal(ask(server, {"query": "a", "contexts": [{}]}))


def test_recordings(tmp_path):
    with serving(tmp_path, HEAR, manifest("speech-to-text")) as server:
        text = "moo de p True"
        body = {"audio": "bW9v", "source_lang": "de", "target_lang": "en", "initial_prompt": "p"}
        assert result(ask(server, body)) == {
            "text": text,
            "word_count": 4,
            "vtt": f"WEBVTT\n\n00:00:00.000 --> 00:00:01.500\n{text}\n\n",
            "transcription_info": {"language": "en", "duration": 1.5},
            "segments": [{"start": 0, "end": 1.5, "text": text, "word_count": 4}],
        }
        assert result(ask(server, {"audio": list(b"moo"), "task": "translate"}))["text"] == "moo None None True"
        server.request("POST", "/ai/run/moo", b"moo", {"content-type": "audio/wav"})
        assert json.loads(server.getresponse().read())["result"]["text"] == "moo None None False"
        for audio in ("?", [256], [], 5):
            assert "`audio`" in refusal(ask(server, {"audio": audio}))
        assert "`beam_size` is not supported" in refusal(ask(server, {"audio": "bW9v", "beam_size": 5}))


def test_speech(tmp_path):
    with serving(tmp_path, SAY, manifest("text-to-speech")) as server:
        body = {"text": "moo", "voice": "ann", "encoding": "flac", "speed": 1.5}
        assert ask(server, body) == (200, "audio/flac", b"RIFFmoo ann flac 1.5 None")
        said = result(ask(server, {"prompt": "moo", "lang": "fr"}, JSON))
        assert base64.b64decode(said["audio"]) == b"RIFFmoo None None None fr"
        assert "exclude each other" in refusal(ask(server, {"prompt": "a", "text": "b"}))


def test_images(tmp_path):
    with serving(tmp_path, DRAW, manifest("text-to-image")) as server:
        body = {"prompt": "a cow", "width": 64, "height": 32, "num_steps": 4, "guidance": 7.5}
        file = b"\x89PNG\r\n\x1a\n64x32 4 7.5"
        assert base64.b64decode(result(ask(server, body))["image"]) == file
        assert ask(server, body, {"accept": "image/*"}) == (200, "image/png", file)
        assert "`width` is 8" in refusal(ask(server, {"prompt": "a", "width": 8}))
