"""Results of handlers in the values that a client for tests returns, by kind."""

from __future__ import annotations

import json
from base64 import b64decode

from omni import _received
from omni._engine import wire
from omni.generation import Completion, Reasoning, Token, ToolCall
from omni.tasks import Segment, Transcription

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from omni.generation import Piece

    Chunk = tuple[int, bytes]

METHODS = {
    "text-generation": "chat",
    "embeddings": "embed",
    "rerank": "rerank",
    "speech-to-text": "transcribe",
    "text-to-speech": "speak",
    "text-to-image": "image",
}
"""Methods of the client by kind."""


def piece(flags: int, payload: bytes) -> Piece:
    """A piece of generated text. A handler without the annotation answers with text, too."""
    if flags == wire.JSON:
        value = _received.plain(flags, payload)
        if isinstance(value, dict) and isinstance(value.get("response"), str):
            return str(value["response"])
    return _received.generated(flags, payload)


def completion(pieces: Iterable[Piece]) -> Completion:
    """A whole text generation."""
    made = Completion()
    for one in pieces:
        if isinstance(one, Token):
            made.tokens.append(one)
            one = one.text
        if isinstance(one, bytes):
            one = one.decode("utf-8", "surrogateescape")
        if isinstance(one, str):
            made.text += one
        elif isinstance(one, Reasoning):
            made.reasoning += one.text
        elif isinstance(one, ToolCall):
            made.tool_calls.append(one)
        else:
            made.finish = one
    made.text = made.text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return made


def of_kind(kind: str, chunks: Iterable[Chunk]) -> Any:
    """The value of an answer to a request of this kind."""
    if kind == "text-generation":
        return completion(piece(flags, payload) for flags, payload in chunks)
    return _OF_BYTES[kind](b"".join(payload for _, payload in chunks))


def _scores(data: bytes) -> list[float]:
    return [float(score) for score in json.loads(data)["scores"]]


def _transcription(data: bytes) -> Transcription:
    value = json.loads(data)
    segments = [Segment(**part) for part in value.pop("segments", [])]
    return Transcription(**value, segments=segments)


def _images(data: bytes) -> list[bytes]:
    return [b64decode(image["data"]) for image in json.loads(data)["images"]]


_OF_BYTES: dict[str, Callable[[bytes], Any]] = {
    "embeddings": lambda data: _received.embeddings(data)[0],
    "rerank": _scores,
    "speech-to-text": _transcription,
    "text-to-speech": bytes,
    "text-to-image": _images,
}
