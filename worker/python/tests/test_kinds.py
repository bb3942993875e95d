"""Embeddings, rerank, speech, images and pydantic models: arguments of handlers, and their answers."""

from __future__ import annotations

import base64
import functools
import json
import re
import struct
import types
from pathlib import Path

import pytest
from peer import CHUNK, END, ERROR, HANDLER, RESPONSE, STREAM, UNSERIALISABLE

from omni import Embeddings, SpeechToText, TextToImage, errors
from omni._engine import entry, kinds

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def model(kind, body, how="def"):
    return f"from omni import *\nimport array\n{how} handle_request(request: {kind}, context):\n    {body}\n"


def vectors(got):
    """The header and the numbers of an answer with embeddings."""
    head, data = got.split()
    assert head == {"media_type": "application/vnd.omni.embeddings"}
    (length,) = struct.unpack_from("<I", data)
    header = json.loads(data[4 : 4 + length])
    numbers = struct.unpack(f"<{header['count'] * header['dimensions']}f", data[4 + length :])
    return header, list(numbers)


@pytest.mark.parametrize("how", ["def", "async def"])
@pytest.mark.parametrize(
    "result",
    [
        "[[len(text), 0.5] for text in request.texts]",
        "[array.array('f', [len(text), 0.5]) for text in request.texts]",
        "tuple((len(text), 0.5) for text in request.texts)",
    ],
)
def test_embeddings(serve, how, result):
    _, link = serve(model("Embeddings", f"return {result}", how))
    got = link.answer(1, {"texts": ["a", "bcd"], "tokens": None, "dimensions": None}, kind="embeddings")
    assert vectors(got) == ({"count": 2, "dimensions": 2}, [1.0, 0.5, 3.0, 0.5])


def test_embeddings_of_tokens_with_usage(serve):
    _, link = serve(model("Embeddings", "return Vectors([[sum(t)] for t in request.tokens], Usage(prompt_tokens=3))"))
    header, numbers = vectors(link.answer(1, {"tokens": [[1, 2], [3]]}, kind="embeddings"))
    assert (header["usage"]["prompt_tokens"], numbers) == (3, [3.0, 3.0])


def test_embeddings_of_numpy_and_torch(serve):
    pytest.importorskip("numpy")
    code = """
    import numpy
    from omni import Embeddings
    class Tensor:
        def __init__(self, value): self.value = value
        def detach(self): return self
        def cpu(self): return self
        def float(self): return Tensor(self.value.astype("float32"))
        def numpy(self): return self.value
    def handle_request(request: Embeddings, context):
        made = numpy.array([[1, 2.5]], dtype=request.texts[0])
        return Tensor(made) if request.dimensions else made
    """
    _, link = serve(code)
    assert vectors(link.answer(1, {"texts": ["float64"]}))[1] == [1.0, 2.5]
    assert vectors(link.answer(2, {"texts": ["float16"], "dimensions": 2}))[1] == [1.0, 2.5]


def test_large_embeddings_are_streamed(serve):
    _, link = serve(model("Embeddings", "return [[0.5] * 1024] * len(request.texts)"))
    link.ask(1, {"texts": ["a"] * 64}, kind="embeddings")
    frames = link.gather(1)[1]
    assert (frames[0].kind, frames[-1].kind) == (STREAM, END)
    size = sum(len(got.payload) for got in frames if got.kind == CHUNK)
    assert frames[0].json["length"] == size > 64 * 4096


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        ("[[1]]", "1 embeddings for 2 inputs"),
        ("[[], []]", "embedding 0 is empty"),
        ("[[1], []]", "embedding 1 is empty"),
        ("[[1, 2], [1]]", "embedding 1 has 1 numbers, embedding 0 has 2"),
        ("[[1], ['a']]", "embedding 1 is no vector of numbers"),
        ("[[1], [float('nan')]]", "embedding 1: number 0 is nan"),
        ("[[1], [1e60]]", "embedding 1: number 0 is inf"),
        ("'ab'", "embeddings are a list of vectors, not str"),
        ("{}", "embeddings are a list of vectors, not dict"),
        ("None", "embeddings are a list of vectors, not NoneType"),
        ("Response([[1]])", "a Response is no answer here"),
        ("Vectors([[1], [2]], usage=5)", "usage is a Usage"),
    ],
)
def test_embeddings_of_other_forms_are_reported(serve, result, problem):
    _, link = serve(model("Embeddings", f"return {result}"))
    got = link.answer(1, {"texts": ["a", "b"]}, kind="embeddings")
    assert (got.kind, got.flags) == (ERROR, UNSERIALISABLE)
    assert problem in got.json["message"]


def test_dimensions_are_kept_or_refused():
    from omni._engine.results import embeddings

    assert embeddings([[1, 2]], 1, None, dimensions=2)
    with pytest.raises(errors.Unserialisable, match="2 numbers, 3 were asked for"):
        embeddings([[1, 2]], 1, None, dimensions=3)


def test_bodies_of_embeddings():
    assert Embeddings.from_json({"text": "a"}).texts == ["a"]
    assert len(Embeddings.from_json({"tokens": [[1], []]})) == 2
    for bad in ({}, {"texts": ["a"], "tokens": [[1]]}, {"texts": [1]}, {"tokens": [["a"]]}, {"texts": "a"}):
        with pytest.raises(errors.BadRequest) as caught:
            Embeddings.from_json(bad)
        assert caught.value.parameter


def test_rerank(serve):
    _, link = serve(model("Rerank", "return [len(d) / 2 for d in request.documents]"))
    assert link.answer(1, {"query": "q", "documents": ["a", "bcd"], "top_n": 1}).json == {"scores": [0.5, 1.5]}
    assert link.answer(2, {"query": "q"}).json["parameter"] == "documents"
    _, link = serve(model("Rerank", "return Scores([1], Usage(5))"))
    assert link.answer(1, {"query": "q", "documents": ["a"]}).json["usage"]["prompt_tokens"] == 5
    got = link.answer(2, {"query": "q", "documents": ["a", "b"]})
    assert (got.flags, got.json["message"]) == (
        UNSERIALISABLE,
        "1 scores for 2 documents: one for each is needed",
    )


def test_speech_to_text(serve):
    body = "return Transcription(request.audio.bytes.decode(), request.language, 1.5, [Segment(0, 1.5, 'm')])"
    _, link = serve(model("SpeechToText", body))
    got = link.answer(1, b"moo", kind="speech-to-text", parameters={"language": "de", "temperature": "0.5"})
    assert got.json == {
        "text": "moo",
        "language": "de",
        "duration": 1.5,
        "segments": [{"start": 0, "end": 1.5, "text": "m"}],
    }
    got = link.answer(2, b"moo", kind="speech-to-text", parameters={"temperature": "hot"})
    assert (got.flags, got.code, got.json["parameter"]) == (HANDLER, 400, "temperature")


def test_speech_may_be_uploaded(serve):
    _, link = serve(model("SpeechToText", "return str(sum(map(len, request.audio.stream())))"))
    upload = link.upload(1, kind="speech-to-text")
    upload.sendall(b"x" * 3_000_000)
    upload.close()
    assert link.read().json == {"text": "3000000"}


def test_text_to_speech(serve):
    _, link = serve(model("TextToSpeech", "return request.text.encode()"))
    got = link.answer(1, {"text": "moo", "format": "mp3"}, kind="text-to-speech")
    assert got.split() == ({"media_type": "audio/mpeg"}, b"moo")
    got = link.answer(2, {"text": "RIFF0000WAVE", "format": "mp3"})
    assert got.split()[0] == {"media_type": "audio/wav"}, "the bytes say it better"
    _, link = serve(model("TextToSpeech", "yield b'a'; yield b'b'"))
    link.ask(1, {"text": "moo", "format": "pcm"})
    frames = link.gather(1)[1]
    assert frames[0].json == {"media_type": "audio/pcm"}
    assert [got.payload for got in frames[1:-1]] == [b"a", b"b"]
    _, link = serve(model("TextToSpeech", "yield b'a'; yield 'b'"))
    link.ask(1, {"text": "moo", "format": "pcm"})
    last = link.gather(1)[1][-1]
    assert (last.kind, last.flags) == (ERROR, UNSERIALISABLE)
    assert "piece 2 of the stream: speech is bytes of an audio file, not str" in last.json["message"]
    _, link = serve(model("TextToSpeech", "return 'moo'"))
    assert "speech is bytes of an audio file, not str" in link.answer(1, {"text": "moo"}).json["message"]


def test_text_to_image(serve):
    _, link = serve(model("TextToImage", f"return [{PNG!r}] * request.width"))
    got = link.answer(1, {"prompt": "a cow", "n": 2, "width": 2}, kind="text-to-image")
    assert got.json == {"images": [{"media_type": "image/png", "data": base64.b64encode(PNG).decode()}] * 2}
    assert link.answer(2, {"prompt": "a cow", "n": 2, "width": 1}).json["message"] == "1 images, 2 were asked for"
    _, link = serve(model("TextToImage", "return b'moo'"))
    assert "no PNG, JPEG" in link.answer(1, {"prompt": "a"}).json["message"]
    with pytest.raises(errors.BadRequest):
        TextToImage.from_json({"prompt": "a", "n": 0})


def test_images_that_are_too_long_for_a_frame_come_in_chunks(serve):
    picture = f"{PNG!r} + bytes(5 << 20)"
    _, link = serve(model("TextToImage", f"return [{picture}] * 3"))
    link.ask(1, {"prompt": "a cow", "n": 3}, kind="text-to-image")
    frames = link.gather(1)[1]
    assert (frames[0].kind, frames[0].json["media_type"], frames[-1].kind) == (STREAM, "application/json", END)
    answer = json.loads(b"".join(got.payload for got in frames if got.kind == CHUNK))
    assert [len(base64.b64decode(image["data"])) for image in answer["images"]] == [len(PNG) + (5 << 20)] * 3


def test_guidance_language_and_translation():
    from omni import Request, TextToSpeech

    assert TextToImage.from_json({"prompt": "a", "guidance": 7.5}).guidance == 7.5
    assert TextToSpeech.from_json({"text": "a", "language": "fr"}).language == "fr"
    parameters = {"translate": True, "filename": "a.mp3"}
    given = SpeechToText.from_request(Request(body=b"x", parameters=parameters))
    assert (given.translate, given.parameters) == (True, parameters)
    for name, value in (("translate", "yes"), ("language", 5)):
        with pytest.raises(errors.BadRequest):
            SpeechToText.from_request(Request(body=b"x", parameters={name: value}))


def test_parameters_of_a_form_are_text():
    from omni import Request

    given = SpeechToText.from_request(Request(body=b"x", parameters={"prompt": "p", "temperature": 1}))
    assert (given.prompt, given.temperature, given.parameters["prompt"], given.audio.bytes) == ("p", 1, "p", b"x")


PYDANTIC = """
from __future__ import annotations
from typing import List
from pydantic import BaseModel
class Cow(BaseModel):
    name: str
    age: int = 3
class Herd(BaseModel):
    cows: List[Cow]
def handle_request(herd: Herd, context):
    return herd.cows[0]
"""


def test_bodies_are_validated_by_pydantic(serve):
    pytest.importorskip("pydantic")
    _, link = serve(PYDANTIC)
    assert link.answer(1, {"cows": [{"name": "moo"}]}).json == {"name": "moo", "age": 3}
    got = link.answer(2, {"cows": [{"name": "moo"}, {"age": "old"}]})
    assert (got.kind, got.flags, got.code, got.json["parameter"]) == (ERROR, HANDLER, 400, "cows[1].name")
    assert "`cows[1].name`: Field required; `cows[1].age`: Input should be a valid integer" in got.json["message"]
    got = link.answer(3, b"{")
    assert (got.code, "parameter" in got.json) == (400, False)
    assert len(link.answer(4, {"cows": [{}] * 50}).json["message"]) < 1000


@pytest.mark.parametrize("how", ["def", "async def"])
def test_bodies_that_are_uploaded_are_validated(serve, how):
    pytest.importorskip("pydantic")
    _, link = serve(PYDANTIC.replace("def handle", f"{how} handle"), 4)
    upload = link.upload(1)
    link.ask(2, {"cows": [{"name": "moo"}]})
    assert link.read().number == 2, "the upload keeps no other request waiting"
    upload.sendall(json.dumps({"cows": [{"name": "x" * 2_000_000}]}).encode())
    upload.close()
    frames = link.gather(1)[1]
    assert len(frames[0].json["name"]) == 2_000_000
    link.upload(3).close()
    assert link.read().code == 400


def test_pydantic_of_the_first_version(serve):
    pytest.importorskip("pydantic.v1")
    _, link = serve(PYDANTIC.replace("from pydantic import", "from pydantic.v1 import"))
    assert link.answer(1, {"cows": [{"name": "moo"}]}).json == {"name": "moo", "age": 3}
    got = link.answer(2, {"cows": [{"name": "moo"}, {}]})
    assert (got.code, got.json["parameter"]) == (400, "cows[1].name")


def test_what_a_validator_raises_is_the_models_own(serve):
    pytest.importorskip("pydantic")
    code = PYDANTIC.replace("age: int = 3", "age: int = 3\n    def model_post_init(self, _): raise RuntimeError('no')")
    _, link = serve(code)
    assert link.answer(1, {"cows": [{"name": "moo"}]}).code == 500


def test_the_usual_handler_is_untouched(serve):
    _, link = serve("def handle_request(request, context): return [request.kind, request.parameters]")
    got = link.answer(1, {})
    assert (got.kind, got.json) == (RESPONSE, [None, {}])
    assert link.answer(2, {}, kind="embeddings", parameters={"a": 1}).json == ["embeddings", {"a": 1}]


def test_omnictl_check_knows_all_kinds():
    source = (Path(__file__).parents[3] / "omnictl/src/commands/check/entrypoint.py").read_text()
    listed = dict(re.findall(r'^    "(\w+)": "([a-z-]+)",$', source, re.MULTILINE))
    assert listed == {name: kinds.kind_of(name) for name in entry._TYPED}


def two(request, context):
    return request


def one(request):
    return request


class Handler:
    def method(self, request, context):
        return request

    @classmethod
    def of_class(cls, request, context):
        return request

    @staticmethod
    def static(request, context):
        return request

    def __call__(self, request, context):
        return request


class Proxy:
    """As decorators of some packages are: shows the attributes of what it wraps, and calls it otherwise."""

    def __init__(self, wrapped):
        self.__dict__["wrapped"] = wrapped

    def __getattr__(self, name):
        return getattr(self.wrapped, name)

    def __call__(self, request, context):
        return self.wrapped(request)


@pytest.mark.parametrize(
    "function, takes",
    [
        (two, True),
        (lambda request, context, more=None: 1, True),
        (lambda *arguments: 1, True),
        (lambda request, context, *, more=1: 1, True),
        (Handler().method, True),
        (Handler.of_class, True),
        (Handler.static, True),
        (Handler(), True),
        (types.MethodType(types.MethodType(lambda a, b, request, context: 1, "a"), "b"), True),
        (functools.partial(lambda more, request, context: 1, 0), True),
        (functools.wraps(one)(lambda *arguments: 1), True),
        (Proxy(one), True),
        (print, True),
        (one, False),
        (lambda request, context, more: 1, False),
        (lambda request, context, *, more: 1, False),
        (Handler.method, False),
        (Handler().static.__get__(Handler()), False),
    ],
)
def test_functions_that_surely_cannot_be_called_are_known(function, takes):
    assert entry.takes(function, 2) is takes
    if takes:
        function(1, 2)
