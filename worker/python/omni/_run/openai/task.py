"""Embeddings, rerank, speech and images: requests, calls of the handler, answers."""

from __future__ import annotations

import base64
import re
import sys
import time
from array import array

from omni import _json, _received, tasks
from omni._run import parameters, refusal
from omni._run.openai import sampling
from omni._run.openai.completion import read_inputs
from omni._run.openai.text import BYTES_PER_TOKEN
from omni._run.parameters import Parameters
from omni.tasks import Embeddings, Rerank, TextToImage, TextToSpeech

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar

    from omni._run.answer import Answer
    from omni._run.handling import Handling
    from omni._run.job import Head

    Json = dict[str, Any]

MOST_INPUTS = 4096
_MOST_IMAGES = 10
LONGEST_PROMPT = 32 * 1024
LONGEST_INPUT = 64 * 1024
_LONGEST_VOICE = 256
SIDES = (16, 4096)
FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")


class EmbeddingTask:
    """A request for embeddings."""

    kind = "embeddings"
    _UNSUPPORTED: ClassVar[dict[str, str]] = {
        "input_type": "put the model's prefix into the input",
        "normalize": "the model decides",
        "truncate_prompt_tokens": "inputs are never cut",
    }

    def __init__(self, head: Head, body: bytes) -> None:
        self.head = head
        known = ("dimensions", "encoding_format", "input", "model", "user")
        given = parameters.of_body(body, known, self._UNSUPPORTED)
        self.model = sampling.read_model(given)
        self._inputs = read_inputs(given, "input", MOST_INPUTS)
        for at, one in enumerate(self._inputs):
            if not one:
                raise refusal.invalid(f"input[{at}]", f"`input[{at}]` is empty")
        self._dimensions = given.integer("dimensions", 1, 65536)
        self._is_base64 = given.word("encoding_format", ("float", "base64")) == "base64"
        self._session = sampling.read_session(given, "user")

    def answer(self, calls: Handling, client: Answer) -> None:
        """Answers the request."""
        texts = [one for one in self._inputs if isinstance(one, str)]
        ids = [one for one in self._inputs if not isinstance(one, str)]
        asked = Embeddings(texts or None, ids or None, self._dimensions)
        data = calls.content(calls.call(self.head.request(tasks.to_json(asked), self.kind, self._session)))
        vectors, _, counted = _received.embeddings(data)
        tokens = sum(map(_tokens, self._inputs)) if counted is None else counted
        rows = [
            {"object": "embedding", "index": index, "embedding": _base64(vector) if self._is_base64 else vector}
            for index, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        calls.in_time()
        client.json({"object": "list", "data": rows, "model": self.model, "usage": usage})


def _base64(vector: list[float]) -> str:
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()


def _tokens(one: str | list[int]) -> int:
    return -(-len(one.encode("utf-8", "replace")) // BYTES_PER_TOKEN) if isinstance(one, str) else len(one)


class RerankTask:
    """A request for the relevance of documents."""

    kind = "rerank"
    _UNSUPPORTED: ClassVar[dict[str, str]] = {
        "max_chunks_per_doc": "documents are never cut",
        "max_tokens_per_doc": "documents are never cut",
        "rank_fields": "send texts",
        "truncate_prompt_tokens": "documents are never cut",
    }

    def __init__(self, head: Head, body: bytes) -> None:
        self.head = head
        known = ("documents", "model", "query", "return_documents", "top_n", "user")
        given = parameters.of_body(body, known, self._UNSUPPORTED)
        self.model = sampling.read_model(given)
        self._query = given.text("query", required=True) or ""
        documents = given.items("documents", MOST_INPUTS, required=True)
        self._documents = [_document(one, at) for at, one in enumerate(documents)]
        self._top = given.integer("top_n", 1)
        self._returns = given.flag("return_documents") is not False
        self._session = sampling.read_session(given, "user")

    def answer(self, calls: Handling, client: Answer) -> None:
        """Answers the request."""
        asked = Rerank(self._query, self._documents, self._top)
        value = value_of(calls, self.head.request(tasks.to_json(asked), self.kind, self._session))
        scores: list[float] = value["scores"]
        ranked = sorted(range(len(scores)), key=lambda at: -scores[at])[: self._top]
        results: list[Json] = [{"index": at, "relevance_score": scores[at]} for at in ranked]
        for result in results if self._returns else ():
            result["document"] = {"text": self._documents[result["index"]]}
        usage = value.get("usage")
        tokens = sum(map(_tokens, [self._query, *self._documents])) if usage is None else usage["prompt_tokens"]
        answer = {"id": f"rerank-{self.head.id_letters}", "model": self.model, "results": results}
        client.json({**answer, "usage": {"total_tokens": tokens}})


def _document(value: Any, at: int) -> str:
    if isinstance(value, str):
        return value
    text = Parameters(value, ("text",), at=f"documents[{at}]").text("text")
    if text is None:
        raise refusal.missing(f"documents[{at}].text")
    return text


class SpeechTask:
    """A request for the sound of a text. The answer is the file."""

    kind = "text-to-speech"
    _UNSUPPORTED: ClassVar[dict[str, str]] = {"instructions": "describe the voice by `voice`"}

    def __init__(self, head: Head, body: bytes) -> None:
        self.head = head
        known = ("input", "model", "response_format", "speed", "stream_format", "voice")
        given = parameters.of_body(body, known, self._UNSUPPORTED)
        self.model = sampling.read_model(given)
        given.harmless("stream_format", ("audio",), "sound is sent as bytes: send `audio`, or leave it out")
        text = given.text("input", LONGEST_INPUT, required=True) or ""
        if isinstance(given.get("voice"), dict):
            raise refusal.unsupported("voice", "voices are not stored: send the name of one")
        voice = given.text("voice", _LONGEST_VOICE)
        form = given.word("response_format", FORMATS) or "mp3"
        self._asked = TextToSpeech(text, voice, form, given.number("speed", 0.25, 4) or 1.0)

    def answer(self, calls: Handling, client: Answer) -> None:
        """Answers the request."""
        calls.write(calls.call(self.head.request(tasks.to_json(self._asked), self.kind)), client)


class ImageTask:
    """A request for images."""

    kind = "text-to-image"
    _UNSUPPORTED: ClassVar[dict[str, str]] = {
        "output_compression": "the model decides",
        "output_format": "the model decides",
        "partial_images": "images come as a whole",
        "style": "describe it in the prompt",
    }

    def __init__(self, head: Head, body: bytes) -> None:
        self.head = head
        known = ("background", "model", "moderation", "n", "negative_prompt", "prompt", "quality", "response_format")
        others = ("safety_identifier", "seed", "size", "steps", "stream", "user")
        given = parameters.of_body(body, (*known, *others), self._UNSUPPORTED)
        self.model = sampling.read_model(given)
        given.harmless("response_format", ("b64_json",), "images are not stored: send `b64_json`")
        given.harmless("quality", ("auto", "standard"), "the model decides: send `auto`, or leave it out")
        given.harmless("background", ("auto",), "the model decides: send `auto`, or leave it out")
        given.harmless("stream", (False,), "images come as a whole: leave it out")
        width, height = _size(given)
        self._asked = TextToImage(
            given.text("prompt", LONGEST_PROMPT, required=True) or "",
            given.text("negative_prompt") or None,
            given.integer("n", 1, _MOST_IMAGES) or 1,
            width,
            height,
            given.integer("seed", -(2**63), 2**63 - 1),
            given.integer("steps", 1, 1000),
        )

    def answer(self, calls: Handling, client: Answer) -> None:
        """Answers the request."""
        images = value_of(calls, self.head.request(tasks.to_json(self._asked), self.kind))["images"]
        client.json({"created": int(time.time()), "data": [{"b64_json": image["data"]} for image in images]})


def _size(given: Parameters) -> tuple[int | None, int | None]:
    size = given.text("size")
    if size is None or size == "auto":
        return None, None
    found = re.fullmatch(r"([0-9]{1,6})x([0-9]{1,6})", size)
    sides = [int(side) for side in found.groups()] if found else []
    if not sides or not all(SIDES[0] <= side <= SIDES[1] for side in sides):
        message = "`size` has to be `auto`, or width and height from 16 to 4096 like `1024x1024`"
        raise refusal.invalid("size", message)
    return sides[0], sides[1]


def value_of(calls: Handling, request: Any) -> Json:
    """The JSON object that the handler answers with."""
    value = _json.decode(calls.content(calls.call(request)))
    calls.in_time()
    if not isinstance(value, dict):
        raise refusal.unsendable("the handler's parameter needs the annotation of its kind, such as `Rerank`")
    return value
