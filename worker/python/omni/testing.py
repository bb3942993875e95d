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
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from omni import _received, _source, _values, errors, generation, tasks
from omni._engine import direct, outcome, wire
from omni._engine.answer import Stream
from omni._engine.batch import Batch, Member
from omni._engine.cancel import Cancels
from omni._engine.entry import kind_of
from omni._engine.model import LoadError, Model
from omni._fields import Fields
from omni.context import Context
from omni.generation import Sampling, TextGeneration
from omni.request import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from omni._source import Source
    from omni.generation import Completion, Piece
    from omni.tasks import Transcription

    Chunk = tuple[int, bytes]

_SAMPLING = frozenset(field.name for field in dataclasses.fields(Sampling))


class Answer:
    """The answer to a request of any kind."""

    def __init__(
        self,
        status: int,
        head: dict[str, Any],
        chunks: list[Chunk],
        usage: Mapping[str, float],
        kind: str | None = None,
    ) -> None:
        self.status = status
        """The HTTP status."""
        self.media_type: str | None = head.get("media_type")
        """The media type, where the handler named one."""
        self.headers: list[tuple[str, str]] = [(name, value) for name, value in head.get("headers", [])]
        """Headers of the handler's own."""
        self.usage = usage
        """Usage that the handler has reported with `context.usage`."""
        self._chunks = chunks
        self._kind = kind

    @property
    def value(self) -> Any:
        """The result of a handler that takes requests of a kind, as the method of that kind returns it: a `Completion`,
        vectors and so on. Of any other handler, the JSON value."""
        return self.json if self._kind is None else _values.of_kind(self._kind, self._chunks)

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
        """The pieces of a stream: text, JSON values and bytes; of generated text, what the handler yields."""
        read = _values.piece if self._kind == "text-generation" else _received.plain
        return [read(flags, payload) for flags, payload in self._chunks]

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
        """Sends a request: `json=`, `text=` or `body=`, and whatever else `omni.Request` takes. A handler that takes
        requests of a kind has a method of its own instead, such as `chat`."""
        self._check_plain("run")
        context, frames = self._call(Request(**request))
        try:
            status, head, chunks = _received.opened(frames)
            return Answer(status, head, list(self._walk(chunks)), context.metrics)
        except errors.HTTPError as err:
            return _refused(err, context)

    def stream(self, **request: Any) -> Iterator[Any]:
        """The same, piece by piece as the handler makes them. A failure is an `errors.HTTPError`."""
        self._check_plain("stream")
        for flags, payload in self._chunks(Request(**request)):
            yield _received.plain(flags, payload)

    def batch(self, bodies: Sequence[Any], **request: Any) -> list[Answer]:
        """Sends these JSON values, or bytes, as one batch to the model's `handle_batch`. Where that takes requests of a
        kind, a value has the fields of the request's type, and an answer has its result in `value`."""
        model = self._model()
        if model.batch is None:
            raise TypeError("the model has no `handle_batch`")
        requests = [
            _Member(body=body, **request) if isinstance(body, bytes) else _Member(json=body, **request)
            for body in bodies
        ]
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
        kind = kind_of(model.batch.function)
        return [_answer_of(parts, context, kind) for parts in found.values()]

    def chat(
        self, messages: Sequence[Mapping[str, Any]] | None = None, *, prompt: str | None = None, **options: Any
    ) -> Completion:
        """A whole text generation. `options`: sampling parameters, and the other fields of `TextGeneration`. Messages
        come to the handler as they are: the node's chat template renders them nowhere here, so that a handler that
        needs a prompt is given one."""
        return _values.completion(self.chat_stream(messages, prompt=prompt, **options))

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
            yield _values.piece(flags, payload)

    def count_tokens(self, prompt: str | None = None, messages: Sequence[Mapping[str, Any]] | None = None) -> int:
        """The number of tokens, by the model's `count_tokens`."""
        body = {"prompt": prompt, "messages": None if messages is None else list(messages)}
        chunks = self._chunks(Request(json=body, kind="count-tokens"))
        return int(_json.loads(b"".join(payload for _, payload in chunks))["tokens"])

    def embed(
        self, texts: Sequence[str] | None = None, *, tokens: Sequence[Sequence[int]] | None = None, **options: Any
    ) -> list[list[float]]:
        """Embeddings of texts, or of tokens."""
        lists = None if tokens is None else [list(one) for one in tokens]
        given = tasks.Embeddings(None if texts is None else list(texts), lists, **options)
        vectors: list[list[float]] = self._value(Request(json=tasks.to_json(given), kind="embeddings"))
        return vectors

    def rerank(self, query: str, documents: Sequence[str], top_n: int | None = None) -> list[float]:
        """Relevance of documents."""
        body = {"query": query, "documents": list(documents), "top_n": top_n}
        scores: list[float] = self._value(Request(json=body, kind="rerank"))
        return scores

    def transcribe(self, audio: bytes, **parameters: Any) -> Transcription:
        """The text of a speech. `parameters`: fields of the form, such as `language`."""
        heard: Transcription = self._value(Request(body=audio, kind="speech-to-text", parameters=parameters))
        return heard

    def speak(self, text: str, **options: Any) -> bytes:
        """The audio file of a text. `options`: `voice`, `format`, `speed`."""
        body = tasks.to_json(tasks.TextToSpeech(text, **options))
        audio: bytes = self._value(Request(json=body, kind="text-to-speech"))
        return audio

    def image(self, prompt: str, **options: Any) -> list[bytes]:
        """Image files. `options`: the fields of `TextToImage`, such as `n`."""
        body = tasks.to_json(tasks.TextToImage(prompt, **options))
        images: list[bytes] = self._value(Request(json=body, kind="text-to-image"))
        return images

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
                from omni._run import startup

                problem = startup.problem_of_kind(model, about)
                if problem is not None:
                    model.teardown()
                    raise RuntimeError(problem)
            self._loaded = model
        return self._loaded

    def _check_plain(self, name: str) -> None:
        """Refuses a request whose answer would have the form of an engine's own wire."""
        model = self._model()
        entry = model.single or model.batch
        kind = None if entry is None else kind_of(entry.function)
        if kind is not None:
            method = _values.METHODS[kind]
            method += " or chat_stream" if method == "chat" else ""
            raise TypeError(f"the handler takes requests for {kind}: call `{method}` instead of `{name}`")

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

    def _value(self, request: Request) -> Any:
        assert request.kind is not None
        return _values.of_kind(request.kind, self._chunks(request))

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


def _answer_of(parts: list[bytes | Chunk], context: Context, kind: str | None) -> Answer:
    """The answer of a member of a batch, from its last frame or the chunks of its stream."""
    status = 200
    chunks: list[Chunk] = []
    head: dict[str, Any] = {}
    for part in parts:
        if isinstance(part, tuple):
            chunks.append(part)
            continue
        try:
            _, frame, _, _, _ = wire.HEADER.unpack_from(part)
            if frame == wire.USAGE:
                part = part[wire.HEADER_LENGTH + wire.HEADER.unpack_from(part)[0] :]
            status, head, made = _received.opened(part)
            assert isinstance(made, list)
            chunks += made
        except errors.HTTPError as err:
            return _refused(err, context)
    return Answer(status, head, chunks, context.metrics, kind)
