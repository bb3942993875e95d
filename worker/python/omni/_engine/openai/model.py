"""The server as a model: what the runner of `async def` handlers calls, by the kind of each request."""

from __future__ import annotations

from omni import _json
from omni._engine import generation, results
from omni._engine.counting import entry as counter_of
from omni._engine.entry import Entry
from omni._engine.model import Model
from omni._engine.openai import tasks, text
from omni._engine.openai.failure import MOST, error_of, error_without_stream
from omni._engine.openai.http import ServerError, ask
from omni._engine.openai.metrics import Reporter
from omni._engine.openai.server import Server
from omni._engine.openai.sleep import Sleeper
from omni.errors import HTTPError
from omni.generation import TextGeneration
from omni.tasks import Embeddings, Rerank

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable
    from typing import Any, Union

    from omni._engine.answer import Stream
    from omni.context import Context
    from omni.generation import Piece
    from omni.request import Request
    from omni.tasks import Scores, Vectors

    Given = Union[TextGeneration, Embeddings, Rerank]

_READERS: dict[str, Callable[[Any, Request], Given]] = {
    "text-generation": TextGeneration.from_json,
    "embeddings": Embeddings.from_json,
    "rerank": Rerank.from_json,
}


class ServerModel(Model):
    """A model that is a server."""

    _reports: asyncio.Task[None]

    def __init__(self, boot: dict[str, Any]) -> None:
        server = Server(boot["engine"]["command"], boot["model_dir"], boot.get("weights_dir"))
        self._server = server
        names = {"module": "", "function": ""}
        sleeps = boot["engine"].get("sleeps", False)
        super().__init__({**boot, "engine": names}, module=Hooks(server, sleeps))

    def _take_functions(self, module: str, name: str, batches: bool) -> None:
        self.single = self._entry = ServerEntry(self._server)
        self.batch = None
        self.is_async = True

        async def count(given: Any, context: Context) -> int:
            return await tasks.count(self._server.address, self._server.model, given)

        self.counter = counter_of(count)

    def begin_reports(self, send: Callable[[bytes], None]) -> None:
        """Reports the server's metrics from now on."""
        reporter = Reporter(self._server, send)
        self._entry.on_use = reporter.note_use
        self._reports = self.loop().create_task(reporter.run())


class Hooks:
    """Functions that a module of an author may have beside its handler."""

    def __init__(self, server: Server, sleeps: bool) -> None:
        self._server = server
        self._sleeps = sleeps
        self._sleeper: Sleeper | None = None

    async def setup(self, context: Context) -> None:
        """Starts the server."""
        await self._server.begin()
        if self._sleeps:
            self._sleeper = Sleeper(self._server)
            await self._sleeper.begin()

    async def healthcheck(self, context: Context) -> None:
        """Asks the server how it is."""
        problem = await self._server.problem()
        if problem is not None:
            raise RuntimeError(problem)

    async def teardown(self, context: Context) -> None:
        """Ends the server."""
        await self._server.end()


class ServerEntry(Entry):
    """The handler of a server's requests. `take` reads one by its kind, `make` makes frames by what was read."""

    __slots__ = ("_server", "on_use")

    def __init__(self, server: Server) -> None:
        self._server = server
        self.on_use: Callable[[], None] | None = None
        """Called for each request."""
        self.function = self.answer
        self.is_batch = False
        self.reads_body = True
        self.take = _read
        self.make = _make

    def answer(self, given: Given, context: Context) -> Any:
        """The answer to a request: pieces of text, or what is awaited."""
        if self.on_use is not None:
            self.on_use()
        if isinstance(given, TextGeneration):
            return self._text(given)
        return self._embeddings(given) if isinstance(given, Embeddings) else self._scores(given)

    async def _text(self, given: TextGeneration) -> AsyncIterator[Piece]:
        body = _json.encode(text.body_of(given, self._server.model))
        try:
            exchange = await ask(self._server.address, "POST", text.path_of(given), body)
            try:
                if exchange.status != 200:
                    raise error_of(exchange.status, await exchange.whole(MOST))
                if not exchange.is_stream:
                    raise error_without_stream(text.path_of(given), exchange.media, await exchange.whole(MOST))
                answer, over = text.Answer(), False
                while not over:
                    data = await exchange.read()
                    over = not data
                    for event in exchange.events_of(data):
                        if event == b"[DONE]":
                            over = True
                            break
                        for piece in answer.pieces_of(event):
                            yield piece
                for piece in answer.ending():
                    yield piece
            finally:
                exchange.close()
        except (OSError, ServerError):
            await self._server.outlive()
            raise

    async def _embeddings(self, given: Embeddings) -> Vectors:
        return tasks.vectors(await self._told(tasks.EMBEDDINGS, tasks.embeddings_body(given, self._server.model)))

    async def _scores(self, given: Rerank) -> Scores:
        return tasks.scores(await self._told(tasks.RERANK, tasks.rerank_body(given, self._server.model)))

    async def _told(self, path: str, body: dict[str, Any]) -> Any:
        try:
            told = await tasks.told_by(self._server.address, path, body)
        except (OSError, ServerError):
            await self._server.outlive()
            raise
        if told is None:
            raise HTTPError(501, f"the server of this model has no `{path}`")
        return told


def _read(request: Request) -> Given:
    reader = _READERS.get(request.kind or "")
    if reader is None:
        raise HTTPError(501, f"a server with the OpenAI API takes no requests for {request.kind or 'anything else'}")
    return reader(request.body.json, request)


def _make(number: int, result: Any, given: Any) -> bytes | Stream:
    if isinstance(given, TextGeneration):
        return generation.make(number, result, given)
    return (
        results.of_embeddings(number, result, given)
        if isinstance(given, Embeddings)
        else results.of_rerank(number, result, given)
    )
