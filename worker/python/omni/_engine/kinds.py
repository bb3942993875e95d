"""Kinds of requests that the node has read: how each becomes a handler's argument, and its result frames."""

from __future__ import annotations

from omni import tasks
from omni._engine import generation, results
from omni.errors import HTTPError
from omni.generation import TextGeneration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from omni._engine.entry import Make, Take
    from omni.request import Request

_KINDS: dict[str, tuple[str, Callable[[Request], Any], Make]] = {
    "TextGeneration": (
        "text-generation",
        lambda request: TextGeneration.from_json(request.body.json, request),
        generation.make,
    ),
    "Embeddings": (
        "embeddings",
        lambda request: tasks.Embeddings.from_json(request.body.json, request),
        results.of_embeddings,
    ),
    "Rerank": ("rerank", lambda request: tasks.Rerank.from_json(request.body.json, request), results.of_rerank),
    "SpeechToText": ("speech-to-text", tasks.SpeechToText.from_request, results.of_speech_to_text),
    "TextToSpeech": (
        "text-to-speech",
        lambda request: tasks.TextToSpeech.from_json(request.body.json, request),
        results.of_text_to_speech,
    ),
    "TextToImage": (
        "text-to-image",
        lambda request: tasks.TextToImage.from_json(request.body.json, request),
        results.of_text_to_image,
    ),
}


def kind_of(name: str) -> str:
    """The kind of the request type of this name."""
    return _KINDS[name][0]


def of_name(name: str) -> tuple[Take, Make]:
    """Both directions of the request type of this name."""
    kind, read, make = _KINDS[name]

    def take(request: Request) -> Any:
        if request.kind not in (None, kind):
            raise HTTPError(501, f"this model takes requests for {kind}, not for {request.kind}")
        return read(request)

    return take, make
