"""Requests of other kinds than text generation, as a handler gets them, and what it answers with.

from omni import Embeddings

def handle_request(request: Embeddings, context):
    return model.encode(request.texts)
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from omni._fields import Fields
from omni.generation import Usage
from omni.request import Body, Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass
class Embeddings:
    """A request for embeddings. The answer: a list of vectors, or a numpy array or tensor of two dimensions, or
    `Vectors`. Exactly one of `texts` and `tokens` is there."""

    texts: list[str] | None = None
    """Texts."""
    tokens: list[list[int]] | None = None
    """Tokens of the model's own vocabulary, a list for each input."""
    dimensions: int | None = None
    """Number of dimensions that the client asks for."""
    request: Request = field(default_factory=Request, repr=False, compare=False)
    """The request itself: `id`, `headers`, `session`, `deadline`."""

    @property
    def cancelled(self) -> bool:
        """True once the client no longer waits."""
        return self.request.cancelled

    def __len__(self) -> int:
        """The number of inputs."""
        return len(self.texts if self.texts is not None else self.tokens or ())

    @classmethod
    def from_json(cls, value: object, request: Request | None = None) -> Embeddings:
        """Reads a body: as the node writes it, or in the form of Workers AI, `{"text": …}`. Raises `BadRequest`."""
        fields = Fields(value)
        texts = fields.get("texts", "a list of texts")
        if texts is None and fields.raw("text") is not None:
            one = fields.raw("text")
            texts = [one] if isinstance(one, str) else fields.get("text", "a list of texts")
        tokens = fields.get("tokens", "a list")
        for at, item in enumerate(tokens or ()):
            if not isinstance(item, list) or not all(type(token) is int for token in item):
                raise fields.wrong(f"tokens[{at}]", "is a list of integers")
        if (texts is None) == (tokens is None):
            raise fields.wrong("texts", "or `tokens` is needed, exactly one of them")
        return cls(texts, tokens, fields.get("dimensions", "an integer"), request or Request())


@dataclass
class Vectors:
    """Embeddings together with the tokens that they took."""

    vectors: Any
    """A list of vectors, or a numpy array or tensor of two dimensions."""
    usage: Usage | None = None
    """Tokens."""


@dataclass
class Rerank:
    """A request for the relevance of documents. The answer: a number for each document, or `Scores`."""

    query: str = ""
    """Query."""
    documents: list[str] = field(default_factory=list)
    """Documents."""
    top_n: int | None = None
    """Number of documents that the client wants to have. The node chooses them: score all."""
    request: Request = field(default_factory=Request, repr=False, compare=False)
    """The request itself: `id`, `headers`, `session`, `deadline`."""

    @property
    def cancelled(self) -> bool:
        """True once the client no longer waits."""
        return self.request.cancelled

    @classmethod
    def from_json(cls, value: object, request: Request | None = None) -> Rerank:
        """Reads a body. Raises `BadRequest`."""
        fields = Fields(value)
        documents = fields.require("documents", "a list of texts")
        return cls(fields.require("query", "text"), documents, fields.get("top_n", "an integer"), request or Request())


@dataclass
class Scores:
    """Relevance of documents together with the tokens that it took."""

    scores: Iterable[float]
    """A number for each document, in the order of the request; a larger one is more relevant."""
    usage: Usage | None = None
    """Tokens."""


@dataclass
class SpeechToText:
    """A request for the text of a speech. The answer: text, or a `Transcription`."""

    audio: Body = field(default_factory=lambda: Body(b""), repr=False)
    """The audio file: `audio.bytes`, or `audio.file()` and `audio.stream()` for large ones."""
    language: str | None = None
    """Language of the speech, if the client has named it."""
    prompt: str | None = None
    """Text before the speech, or words that are in it."""
    temperature: float | None = None
    """Sampling temperature."""
    translate: bool = False
    """True where the client wants the text in English, whatever language is spoken."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """All of these, and `filename` and `media_type` of the audio file, where the client has sent them."""
    request: Request = field(default_factory=Request, repr=False, compare=False)
    """The request itself: `id`, `headers`, `session`, `deadline`."""

    @property
    def cancelled(self) -> bool:
        """True once the client no longer waits."""
        return self.request.cancelled

    @classmethod
    def from_request(cls, request: Request) -> SpeechToText:
        """Reads the parameters; the audio is read when it is asked for. Raises `BadRequest`."""
        fields = Fields(request.parameters)
        temperature = fields.raw("temperature")
        if isinstance(temperature, str):  # fields of a form are text
            try:
                temperature = float(temperature)
            except ValueError:
                raise fields.wrong("temperature", "is a number") from None
        elif temperature is not None:
            temperature = fields.get("temperature", "a number")
        language, prompt = fields.get("language", "text"), fields.get("prompt", "text")
        translate = fields.get("translate", "true or false", False)
        return cls(request.body, language, prompt, temperature, translate, dict(request.parameters), request)


@dataclass
class Segment:
    """A part of a transcription."""

    start: float
    """Beginning, in seconds."""
    end: float
    """End, in seconds."""
    text: str
    """Text."""


@dataclass
class Transcription:
    """The text of a speech, with more than the text."""

    text: str
    """Text."""
    language: str | None = None
    """Language."""
    duration: float | None = None
    """Seconds of audio."""
    segments: list[Segment] = field(default_factory=list)
    """Parts, in order."""


@dataclass
class TextToSpeech:
    """A request for speech. The answer: bytes of the audio file, whole or yielded in parts, or `Response.audio(…)`."""

    text: str = ""
    """Text."""
    voice: str | None = None
    """Voice, by the model's name for it."""
    format: str | None = None
    """Format of the file, such as `"mp3"` or `"wav"`. An answer of another one is a `Response.audio(…)`."""
    speed: float | None = None
    """Speed; 1 is natural."""
    language: str | None = None
    """Language, such as `"en"`, if the client has named it."""
    request: Request = field(default_factory=Request, repr=False, compare=False)
    """The request itself: `id`, `headers`, `session`, `deadline`."""

    @property
    def cancelled(self) -> bool:
        """True once the client no longer waits."""
        return self.request.cancelled

    @classmethod
    def from_json(cls, value: object, request: Request | None = None) -> TextToSpeech:
        """Reads a body. Raises `BadRequest`."""
        fields = Fields(value)
        voice, format = fields.get("voice", "text"), fields.get("format", "text")
        speed, language = fields.get("speed", "a number"), fields.get("language", "text")
        return cls(fields.require("text", "text"), voice, format, speed, language, request or Request())


@dataclass
class TextToImage:
    """A request for images. The answer: bytes of a PNG or JPEG file, a Pillow image, or a list of these, `n` long."""

    prompt: str = ""
    """Description."""
    negative_prompt: str | None = None
    """Description of what should not be there."""
    n: int = 1
    """Number of images."""
    width: int | None = None
    """Width in pixels."""
    height: int | None = None
    """Height in pixels."""
    seed: int | None = None
    """Seed of the random numbers."""
    steps: int | None = None
    """Steps of the diffusion."""
    guidance: float | None = None
    """Strength with which the diffusion follows the description."""
    request: Request = field(default_factory=Request, repr=False, compare=False)
    """The request itself: `id`, `headers`, `session`, `deadline`."""

    @property
    def cancelled(self) -> bool:
        """True once the client no longer waits."""
        return self.request.cancelled

    @classmethod
    def from_json(cls, value: object, request: Request | None = None) -> TextToImage:
        """Reads a body. Raises `BadRequest`."""
        fields = Fields(value)
        made = cls(fields.require("prompt", "text"), fields.get("negative_prompt", "text"))
        made.n = fields.get("n", "an integer", 1)
        if made.n < 1:
            raise fields.wrong("n", "is 1 or more")
        for name in ("width", "height", "seed", "steps"):
            setattr(made, name, fields.get(name, "an integer"))
        made.guidance = fields.get("guidance", "a number")
        if request is not None:
            made.request = request
        return made


def to_json(value: Any) -> dict[str, Any]:
    """The body of a request, as the node writes it."""
    return {one.name: getattr(value, one.name) for one in dataclasses.fields(value) if one.name != "request"}
