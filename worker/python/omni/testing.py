"""Tests of a model without a node: a client that calls its handler in this process.

    from omni.testing import TestClient

    def test_moo():
        with TestClient("models/moo") as client:
            assert client.run(json={"text": "hi"}).json == {"length": 2}
            assert client.chat(prompt="moo").text == "moo moo"

Requests are read, and results checked and written, by the code of the engine; what the handler raises is raised here.
`pip install omni` brings the fixture `model_client`, a client of the model in whose directory the test is.
"""

from __future__ import annotations

import dataclasses
import json as _json
from base64 import b64decode
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from omni import _received, _source, errors, generation, tasks
from omni._engine import direct, outcome, wire
from omni._engine.answer import Stream
from omni._engine.batch import Batch, Member
from omni._engine.cancel import Cancels
from omni._engine.model import LoadError, Model
from omni._fields import Fields
from omni.context import Context
from omni.generation import Completion, Reasoning, Sampling, TextGeneration, Token, ToolCall
from omni.request import Request
from omni.tasks import Segment, Transcription

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from omni._source import Source
    from omni.generation import Piece

    Chunk = tuple[int, bytes]

_SAMPLING = frozenset(field.name for field in dataclasses.fields(Sampling))


class Answer:
    """The answer to a request of any kind."""

    def __init__(self, status: int, head: dict[str, Any], chunks: list[Chunk], usage: Mapping[str, float]) -> None:
        self.status = status
        """The HTTP status."""
        self.media_type: str | None = head.get("media_type")
        """The media type, where the handler named one."""
        self.headers: list[tuple[str, str]] = [(name, value) for name, value in head.get("headers", [])]
        """Headers of the handler's own."""
        self.usage = usage
        """Usage that the handler has reported with `context.usage`."""
        self._chunks = chunks

    @property
    def body(self) -> bytes:
        """The bytes of the answer; of a stream, those of all pieces."""
        return b"".join(payload for _, payload in self._chunks)

    @property
    def text(self) -> str:
        """The answer as text: that of a text, or of all pieces of a stream."""
        if [flags for flags, _ in self._chunks] == [wire.JSON] and isinstance(self.json, str):
            return str(self.json)
        return self.body.decode()

    @property
    def json(self) -> Any:
        """The answer as a JSON value."""
        return _json.loads(self.body)

    @property
    def pieces(self) -> list[Any]:
        """The pieces of a stream: text, JSON values and bytes."""
        return [_received.plain(flags, payload) for flags, payload in self._chunks]

    def __repr__(self) -> str:
        return f"Answer(status={self.status}, body={self.body[:200]!r})"


class TestClient:
    """A client of a model in this process.

    `model`: its directory, its module, or its handler. `setup` runs before the first request, or at the beginning of a
    `with` block, at whose end `teardown` runs. Handlers run in the calling thread, and asynchronous ones in an event
    loop of the model's own: call this from tests that are not asynchronous themselves.
    """

    __test__ = False  # none of pytest's test classes

    def __init__(
        self,
        model: Source,
        *,
        weights_dir: str | Path | None = None,
        cache_dir: str | Path | None = None,
        device: str = "cpu",
    ) -> None:
        self._source = model
        self._about = {
            "model": "test",
            "instance": "test",
            "cache_dir": str(cache_dir or ""),
            "weights_dir": None if weights_dir is None else str(weights_dir),
            "device": device,
            "concurrency": 1,
        }
        self._loaded: Model | None = None

    def __enter__(self) -> TestClient:
        self._model()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Runs the model's `teardown`."""
        if self._loaded is not None:
            self._loaded.teardown()
            self._loaded = None

    def run(self, **request: Any) -> Answer:
        """Sends a request: `json=`, `text=` or `body=`, and whatever else `omni.Request` takes."""
        context, frames = self._call(Request(**request))
        try:
            status, head, chunks = _received.opened(frames)
            return Answer(status, head, list(self._walk(chunks)), context.metrics)
        except errors.HTTPError as err:
            return _refused(err, context)

    def stream(self, **request: Any) -> Iterator[Any]:
        """The same, piece by piece as the handler makes them. A failure is an `errors.HTTPError`."""
        for flags, payload in self._chunks(Request(**request)):
            yield _received.plain(flags, payload)

    def batch(self, bodies: Sequence[Any], **request: Any) -> list[Answer]:
        """Sends these JSON values as one batch to the model's `handle_batch`."""
        model = self._model()
        if model.batch is None:
            raise TypeError("the model has no `handle_batch`")
        requests = [_Member(json=body, **request) for body in bodies]
        members: list[Any] = [Member(at + 1, one) for at, one in enumerate(requests)]  # type: ignore[arg-type]
        batch = Batch(len(members) + 1, members, model.batch, Cancels(), isolates=False)
        context = batch.context(model.instance)
        given = batch.take()
        found: dict[int, list[bytes | Chunk]] = {member.number: [] for member in members}
        for member, last in batch.left_out():
            found[member.number].append(last)
        result = model.batch.function(given, context) if given else []
        result = self._awaited(result) if hasattr(result, "__await__") else result
        if hasattr(result, "__next__") or hasattr(result, "__aiter__"):
            self._walk_batch(batch, result, found)
        else:
            for member, made in batch.results(result):
                found[member.number] += [made] if isinstance(made, bytes) else list(self._walk(made))
        return [_answer_of(parts, context) for parts in found.values()]

    def chat(
        self, messages: Sequence[Mapping[str, Any]] | None = None, *, prompt: str | None = None, **options: Any
    ) -> Completion:
        """A whole text generation. `options`: sampling parameters, and the other fields of `TextGeneration`. Messages
        come to the handler as they are: the node's chat template renders them nowhere here, so that a handler that
        needs a prompt is given one."""
        made = Completion()
        for piece in self.chat_stream(messages, prompt=prompt, **options):
            if isinstance(piece, Token):
                made.tokens.append(piece)
                piece = piece.text
            if isinstance(piece, bytes):
                piece = piece.decode("utf-8", "surrogateescape")
            if isinstance(piece, str):
                made.text += piece
            elif isinstance(piece, Reasoning):
                made.reasoning += piece.text
            elif isinstance(piece, ToolCall):
                made.tool_calls.append(piece)
            else:
                made.finish = piece
        made.text = made.text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        return made

    def chat_stream(
        self, messages: Sequence[Mapping[str, Any]] | None = None, *, prompt: str | None = None, **options: Any
    ) -> Iterator[Piece]:
        """The pieces of a text generation, as the handler makes them."""
        sampling = {name: value for name, value in options.items() if name in _SAMPLING}
        others = {name: value for name, value in options.items() if name not in _SAMPLING}
        stream = others.pop("stream", True)
        if isinstance(others.get("response_format"), dict):
            others["response_format"] = generation.read_response_format(Fields(others))
        if messages is not None and prompt is None and _source.gets_prompts(self._source):
            raise ValueError('this model gets prompts: pass prompt="…", or set [chat] render = "model" in omni.toml')
        listed = None if messages is None else [dict(message) for message in messages]
        given = TextGeneration(prompt, messages=listed, sampling=Sampling(**sampling), stream=stream, **others)
        for flags, payload in self._chunks(Request(json=generation.to_json(given), kind="text-generation")):
            yield _generated(flags, payload)

    def count_tokens(self, prompt: str | None = None, messages: Sequence[Mapping[str, Any]] | None = None) -> int:
        """The number of tokens, by the model's `count_tokens`."""
        body = {"prompt": prompt, "messages": None if messages is None else list(messages)}
        return int(self._whole(Request(json=body, kind="count-tokens"))["tokens"])

    def embed(
        self, texts: Sequence[str] | None = None, *, tokens: Sequence[Sequence[int]] | None = None, **options: Any
    ) -> list[list[float]]:
        """Embeddings of texts, or of tokens."""
        lists = None if tokens is None else [list(one) for one in tokens]
        given = tasks.Embeddings(None if texts is None else list(texts), lists, **options)
        data = b"".join(part for _, part in self._chunks(Request(json=tasks.to_json(given), kind="embeddings")))
        return _received.embeddings(data)[0]

    def rerank(self, query: str, documents: Sequence[str], top_n: int | None = None) -> list[float]:
        """Relevance of documents."""
        body = {"query": query, "documents": list(documents), "top_n": top_n}
        return [float(score) for score in self._whole(Request(json=body, kind="rerank"))["scores"]]

    def transcribe(self, audio: bytes, **parameters: Any) -> Transcription:
        """The text of a speech. `parameters`: fields of the form, such as `language`."""
        value = self._whole(Request(body=audio, kind="speech-to-text", parameters=parameters))
        segments = [Segment(**part) for part in value.pop("segments", [])]
        return Transcription(**value, segments=segments)

    def speak(self, text: str, **options: Any) -> bytes:
        """The audio file of a text. `options`: `voice`, `format`, `speed`."""
        body = tasks.to_json(tasks.TextToSpeech(text, **options))
        return b"".join(part for _, part in self._chunks(Request(json=body, kind="text-to-speech")))

    def image(self, prompt: str, **options: Any) -> list[bytes]:
        """Image files. `options`: the fields of `TextToImage`, such as `n`."""
        body = tasks.to_json(tasks.TextToImage(prompt, **options))
        images = self._whole(Request(json=body, kind="text-to-image"))["images"]
        return [b64decode(image["data"]) for image in images]

    def _model(self) -> Model:
        if self._loaded is None:
            about = _source.manifest_of(self._source)
            module, name = _source.found(self._source, about)
            batches = about is not None and about.has_batches
            boot = {**self._about, "batches": batches, "engine": {"module": module.__name__, "function": name}}
            try:
                model = Model(boot, module)
            except LoadError as err:
                raise RuntimeError(err.message) from None
            if about is not None:
                from omni._run import refused

                problem = refused.of_kind(model, about)
                if problem is not None:
                    model.teardown()
                    raise RuntimeError(problem)
            self._loaded = model
        return self._loaded

    def _call(self, request: Request) -> tuple[Context, bytes | Stream]:
        model = self._model()
        context = Context(model.instance, request)
        try:
            return context, direct.frames(model, request, context, _plainly, self._awaited)
        except errors.HTTPError as err:
            return context, outcome.failed(0, err, None, skip=0)

    def _chunks(self, request: Request) -> Iterator[Chunk]:
        _, frames = self._call(request)
        _, _, chunks = _received.opened(frames)
        return self._walk(chunks)

    def _whole(self, request: Request) -> Any:
        return _json.loads(b"".join(payload for _, payload in self._chunks(request)))

    def _walk(self, chunks: list[Chunk] | Stream) -> Iterator[Chunk]:
        if isinstance(chunks, list):
            yield from chunks
            return
        for item in self._items(chunks.chunks):
            flags, payload = chunks.encode(item)
            yield flags, bytes(payload)

    def _items(self, source: Any) -> Iterator[Any]:
        if not hasattr(source, "__aiter__"):
            yield from source
            return
        walk = source.__aiter__()
        try:
            while True:
                try:
                    yield self._awaited(walk.__anext__())
                except StopAsyncIteration:
                    return
        finally:
            if isinstance(walk, AsyncGenerator):
                self._model().loop().run_until_complete(walk.aclose())

    def _walk_batch(self, batch: Batch, result: Any, found: dict[int, list[bytes | Chunk]]) -> None:
        batch.open_streams()
        for step in self._items(result):
            for member, piece in batch.pieces(step):
                last = batch.leaves(member, piece)
                if last:
                    found[member.number].append(last)
                    continue
                assert member.stream is not None
                flags, payload = member.stream.encode(piece)
                found[member.number].append((flags, bytes(payload)))
                if member.stream.finished:
                    batch.completed(member)
            if batch.is_over:
                return

    def _awaited(self, awaitable: Any) -> Any:
        async def wait() -> Any:
            return await awaitable

        return self._model().loop().run_until_complete(wait())


class _Member(Request):
    """A request of a batch."""

    __slots__ = ()

    def close(self) -> None:
        """Nothing is open."""


def _plainly(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def _refused(error: errors.HTTPError, context: Context) -> Answer:
    return Answer(error.status, {}, [(wire.TEXT, error.message.encode())], context.metrics)


def _answer_of(parts: list[bytes | Chunk], context: Context) -> Answer:
    """The answer of a member of a batch, from its last frame or the chunks of its stream."""
    status = 200
    chunks: list[Chunk] = []
    head: dict[str, Any] = {}
    for part in parts:
        if isinstance(part, tuple):
            chunks.append(part)
            continue
        try:
            _, kind, _, _, _ = wire.HEADER.unpack_from(part)
            if kind == wire.USAGE:
                part = part[wire.HEADER_LENGTH + wire.HEADER.unpack_from(part)[0] :]
            status, head, made = _received.opened(part)
            assert isinstance(made, list)
            chunks += made
        except errors.HTTPError as err:
            return _refused(err, context)
    return Answer(status, head, chunks, context.metrics)


def _generated(flags: int, payload: bytes) -> Piece:
    """A piece of generated text. A handler without the annotation answers with text, too."""
    if flags == wire.JSON:
        value = _received.plain(flags, payload)
        if isinstance(value, dict) and isinstance(value.get("response"), str):
            return str(value["response"])
    return _received.generated(flags, payload)
