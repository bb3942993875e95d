"""Routes of the API, and the kind of models that each is for."""

from __future__ import annotations

import time
from urllib.parse import unquote

from omni import _json
from omni._run import refusal
from omni._run.openai import chat, completion
from omni._run.openai.audio import TranscriptionTask
from omni._run.openai.encoder import ChatEncoder, CompletionEncoder
from omni._run.openai.task import EmbeddingTask, ImageTask, RerankTask, SpeechTask
from omni._run.openai.text import Text
from omni._run.refusal import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from email.message import Message
    from typing import Any

    from omni._run.answer import Answer
    from omni._run.job import Head, Job
    from omni._run.manifest import Manifest
    from omni._run.template import ChatTemplate

    Read = Callable[[Head, bytes], Any]

TEXT = "text-generation"
_KINDS = {
    "audio/speech": "text-to-speech",
    "audio/transcriptions": "speech-to-text",
    "audio/translations": "speech-to-text",
    "chat/completions": TEXT,
    "completions": TEXT,
    "embeddings": "embeddings",
    "images/generations": "text-to-image",
    "rerank": "rerank",
}
_OF_A_NODE = ("messages", "messages/count_tokens", "responses")
"""Routes that a node has in addition."""
_ABILITIES = {
    TEXT: "does not generate text",
    "embeddings": "makes no embeddings",
    "rerank": "ranks no documents",
    "speech-to-text": "transcribes no speech",
    "text-to-image": "makes no images",
    "text-to-speech": "does not speak",
}
_READERS: dict[str, Read] = {
    "audio/speech": SpeechTask,
    "embeddings": EmbeddingTask,
    "images/generations": ImageTask,
    "rerank": RerankTask,
}


def is_form(route: str) -> bool:
    """True where the body is a form, and no JSON."""
    return _KINDS.get(route) == "speech-to-text"


class OpenAi:
    """The API for one model."""

    def __init__(self, model: str, manifest: Manifest, template: ChatTemplate) -> None:
        self._model = model
        self._manifest = manifest
        self._template = template
        self._since = int(time.time())

    def check(self, route: str, method: str) -> None:
        """Checks that there is such a route. Raises `Refused`."""
        if route in _OF_A_NODE:
            raise Refused(404, 7000, f"the local run does not serve `/v1/{route}`: a node does")
        is_list = route == "models" or route.startswith("models/")
        if not is_list and route not in _KINDS:
            raise Refused(404, 7000, "no such route")
        allowed = "GET" if is_list else "POST"
        if method != allowed:
            raise Refused(405, 7001, f"this route takes {allowed}")

    def models(self, route: str, client: Answer) -> bool:
        """Answers the routes of models. False for any other route."""
        entry = {"id": self._model, "object": "model", "created": self._since, "owned_by": "omni"}
        if route == "models":
            client.json({"object": "list", "data": [entry]})
        elif route.startswith("models/"):
            self._check_model(unquote(route[len("models/") :]))
            client.json(entry)
        else:
            return False
        return True

    def read(self, route: str, head: Head, body: bytes, headers: Message) -> Job:
        """Reads a request. Raises `Refused`."""
        media_type = headers.get("content-type", "")
        if _KINDS[route] == "speech-to-text":
            job: Any = TranscriptionTask(head, body, media_type, route == "audio/translations")
        elif _KINDS[route] == TEXT:
            is_chat = route == "chat/completions"
            asked = chat.read(body) if is_chat else completion.read(body)
            form = ChatEncoder if is_chat else CompletionEncoder
            job = Text(head, asked, form, self._manifest, self._template)
        else:
            job = _READERS[route](head, body)
        self._check_model(job.model)
        kind = _KINDS[route]
        if self._manifest.kind != kind:
            message = f"`{self._model}` {_ABILITIES[kind]}: its kind is {_json.encode(self._manifest.kind).decode()}"
            raise refusal.unsupported("model", message)
        if kind == TEXT:
            job.check()
        return job  # type: ignore[no-any-return]

    def _check_model(self, name: str) -> None:
        if name.rpartition("/")[2] != self._model:
            raise Refused(404, 5007, "no such model")
