"""Bodies of any form: the local run reads them, or refuses them by name."""

from __future__ import annotations

import json
import random

import pytest
from local import multipart

from omni._run import form, native_text
from omni._run.job import Head
from omni._run.openai import chat, completion
from omni._run.openai.audio import TranscriptionTask
from omni._run.openai.task import EmbeddingTask, ImageTask, RerankTask, SpeechTask
from omni._run.refusal import Refused

HEAD = Head("i", [], None, 0.0)
USER = [{"role": "user", "content": "hi"}]
ODD = [
    None,
    True,
    -1,
    0,
    1.5,
    1e999,
    2**70,
    "",
    "x",
    "none",
    [],
    [[]],
    [None],
    [{}],
    ["a", 1],
    {},
    {"a": None},
    {"type": "function"},
    {"type": "json_schema", "json_schema": {}},
    [{"type": "function", "function": {"name": 1}}],
    [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 1}}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}],
]
READERS = {
    "chat": (chat.read, {"model": "m", "messages": USER}),
    "completion": (completion.read, {"model": "m", "prompt": "hi"}),
    "native": (lambda body: native_text.read("m", body), {"messages": USER}),
    "embedding": (lambda body: EmbeddingTask(HEAD, body), {"model": "m", "input": "a"}),
    "rerank": (lambda body: RerankTask(HEAD, body), {"model": "m", "query": "q", "documents": ["a"]}),
    "speech": (lambda body: SpeechTask(HEAD, body), {"model": "m", "input": "a"}),
    "image": (lambda body: ImageTask(HEAD, body), {"model": "m", "prompt": "a"}),
}
NAMES = {
    "chat": chat._KNOWN,
    "completion": completion._KNOWN,
    "native": native_text._KNOWN,
    "embedding": ("dimensions", "encoding_format", "input", "model", "user"),
    "rerank": ("documents", "model", "query", "return_documents", "top_n", "user"),
    "speech": ("input", "model", "response_format", "speed", "stream_format", "voice"),
    "image": ("background", "n", "negative_prompt", "prompt", "quality", "seed", "size", "steps", "stream"),
}


@pytest.mark.parametrize("api", READERS)
def test_any_value_of_any_parameter_is_read_or_refused(api):
    read, base = READERS[api]
    read(json.dumps(base).encode())
    refused = 0
    for name in NAMES[api]:
        for value in ODD:
            try:
                read(json.dumps({**base, name: value}).replace("Infinity", "1e999").encode())
            except Refused as err:
                refused += 1
                assert err.status == 400 and err.message
                assert err.parameter is None or err.parameter.split(".")[0].split("[")[0] in (*base, *NAMES[api])
    assert refused > 50
    for body in (b"", b"[]", b"7", b"{", b"\xff", b"[" * 100_000, b'{"a": NaN}', b'{"model": "\\ud800"}'):
        with pytest.raises(Refused):
            read(body)


FORM = multipart(
    [("model", "", b"m"), ("file", '; filename="a.wav"', b"\r\n--y\r\n-x--x\r\n"), ("prompt", "", "é".encode())]
)


@pytest.mark.parametrize("token", ["the", "", "+1", "01", "1_0", "²", "4294967296", "1" * 5000])
def test_keys_of_a_bias_are_the_ids_of_tokens(token):
    def read(key):
        return chat.read(json.dumps({"model": "m", "messages": USER, "logit_bias": {key: 5}}).encode())

    assert read("4294967295").first.sampling.logit_bias == {4294967295: 5.0}
    with pytest.raises(Refused, match="its keys have to be token ids") as refused:
        read(token)
    assert refused.value.parameter == "logit_bias"


TYPE = "multipart/form-data; boundary=x"


def test_a_form_is_read():
    fields, files = form.read(FORM, TYPE)
    assert fields == [("model", "m"), ("prompt", "é")]
    assert files["file"] == (b"\r\n--y\r\n-x--x\r\n", "a.wav", None)
    assert form.read(b"preamble\r\n" + FORM, 'Multipart/Form-Data; boundary="x"')[0] == fields


def test_a_broken_form_is_refused():
    chance = random.Random(7)
    for _ in range(2000):
        body = bytearray(FORM)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(body))
            body[at : at + chance.randrange(3)] = bytes(
                chance.choice(b'\r\n-x";:=a') for _ in range(chance.randrange(3))
            )
        try:
            TranscriptionTask(HEAD, bytes(body), TYPE, translate=False)
        except Refused as err:
            assert err.status == 400
    for body, media_type in ((b"", TYPE), (FORM, "text/plain"), (FORM, "multipart/form-data"), (FORM[:-9], TYPE)):
        with pytest.raises(Refused):
            form.read(body, media_type)
    with pytest.raises(Refused, match="several boundaries"):
        form.read(FORM, f"{TYPE}; Boundary=y")
    with pytest.raises(Refused, match="more than 64"):
        form.read(multipart([("a", "", b"")] * 65), TYPE)
