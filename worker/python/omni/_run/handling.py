"""A handler call of the local run, in the main thread: from a request to frames, the deadline raised in the handler.

Invariant: the alarm raises only while the model's code runs (`_in_model`), so no answer is torn.
"""

from __future__ import annotations

import asyncio
import signal
import time
from types import AsyncGeneratorType

from omni import _log, _received
from omni._engine import direct, outcome, wire
from omni._run.answer import FAILED, LATE, Answer, Gone, code_of
from omni._run.refusal import Refused
from omni.context import Context, request_now
from omni.errors import ContextLengthExceeded, DeadlineExceeded, HTTPError, Unserialisable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from types import FrameType, TracebackType
    from typing import Any

    from omni._engine.answer import Stream
    from omni._engine.model import Model
    from omni._run.job import Job
    from omni.request import Request

_END: Any = object()


class Late:
    """Tells a context whether its request's deadline has passed."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline

    def reason(self, number: int) -> int | None:
        return wire.DEADLINE if time.monotonic() >= self.deadline else None


class Handling:
    """Answers one request at a time."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._in_model = False
        self._late = Late(0.0)
        self._place: TracebackType | None = None
        """Where the model's coroutine was when something was raised in it."""
        if hasattr(signal, "setitimer"):
            signal.signal(signal.SIGALRM, self._alarm)

    def answer(self, job: Job, client: Answer) -> None:
        """Runs the handler and writes what comes."""
        self._late, self._place = Late(job.head.deadline), None
        try:
            job.answer(self, client)
        except Gone as err:
            if err.args:
                _log.report("INFO", str(err))
        except Refused as err:
            if client.opened:
                client.broken(err.status, err.message)
            else:
                client.failure(err.status, err.code, err.message, err.parameter, err.name)
        except BaseException as err:
            if isinstance(err, KeyboardInterrupt):
                raise
            status, message = self._failed(err)
            if client.opened:
                client.broken(status, LATE if status == 504 else FAILED)
            else:
                name = err.code if isinstance(err, ContextLengthExceeded) else None
                client.failure(status, code_of(status), message, getattr(err, "parameter", None), name)
        finally:
            request_now.set(None)

    def call(self, request: Request) -> bytes | Stream:
        """Calls the handler: its last frame, or its stream."""
        context = Context(self._model.instance, request, self._late)
        request_now.set(request)
        return direct.frames(self._model, request, context, self.run, self._awaited)

    def pieces(self, stream: Stream) -> Iterator[tuple[int, bytes]]:
        """The pieces of a stream, each within the deadline."""
        items = self._items(stream.chunks)
        try:
            for item in items:
                flags, payload = stream.encode(item)
                yield flags, bytes(payload)
        finally:
            items.close()

    def content(self, last: bytes | Stream) -> bytes:
        """The whole content of an answer. Raises `HTTPError` for an error."""
        _, _, content = _received.opened(last)
        return b"".join(payload for _, payload in (content if isinstance(content, list) else self.pieces(content)))

    def write(self, last: bytes | Stream, client: Answer) -> None:
        """Writes an answer as the handler gives it."""
        if isinstance(last, bytes):
            self.in_time()
            client.whole(last)
            return
        for flags, payload in self.pieces(last):
            if not client.opened:
                client.open(last.opening())
            client.piece(flags, payload)
        if not client.opened:
            client.open(last.opening())
        client.end()

    def _failed(self, error: BaseException) -> tuple[int, str]:
        """Status and message of a failure, whose traceback goes to the log where a node's would."""
        cancelled = isinstance(error, (DeadlineExceeded, asyncio.CancelledError))
        if self._late.reason(0) is not None:
            outcome.log_position(error if self._place is None or not cancelled else error.with_traceback(self._place))
            if not cancelled:
                _log.report("ERROR", "raised after it was cancelled\n" + _log.traceback_of(error, skip=2))
            return 504, LATE
        if isinstance(error, HTTPError):
            return error.status, error.message
        if isinstance(error, Unserialisable):
            _log.report("ERROR", f"the result cannot be sent: {error}")
        else:
            _log.report("ERROR", "the handler raised\n" + _log.traceback_of(error, skip=2))
        return 500, FAILED

    def in_time(self) -> None:
        """Raises `DeadlineExceeded` once the deadline has passed."""
        if self._late.reason(0) is not None:
            raise DeadlineExceeded(LATE)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Runs the model's code, which the alarm interrupts at the deadline."""
        left = self._late.deadline - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(LATE)
        try:
            self._in_model = True
            if hasattr(signal, "setitimer"):
                signal.setitimer(signal.ITIMER_REAL, left)
            return function(*arguments)
        finally:
            self._in_model = False
            if hasattr(signal, "setitimer"):
                signal.setitimer(signal.ITIMER_REAL, 0)

    def _alarm(self, _signal: int, _frame: FrameType | None) -> None:
        if self._in_model:
            self._in_model = False
            raise DeadlineExceeded("the deadline has passed")

    def _awaited(self, awaitable: Any) -> Any:
        """Waits in the model's event loop; at the deadline the task is cancelled."""
        loop = self._model.loop()

        async def wait() -> Any:
            try:
                return await awaitable
            except BaseException as err:
                self._place = err.__traceback__
                raise

        task = loop.create_task(wait())
        alarm = loop.call_later(max(0.0, self._late.deadline - time.monotonic()), task.cancel)
        try:
            return loop.run_until_complete(task)
        finally:
            alarm.cancel()

    def _items(self, chunks: Any) -> Generator[object, None, None]:
        """The pieces of a stream, each within the deadline."""
        if not hasattr(chunks, "__aiter__"):
            walk = iter(chunks)
            try:
                while True:
                    item = self.run(next, walk, _END)
                    if item is _END:
                        return
                    self.in_time()
                    yield item
            finally:
                if hasattr(walk, "close"):
                    walk.close()
        source = chunks.__aiter__()
        try:
            while True:
                try:
                    yield self._awaited(source.__anext__())
                except StopAsyncIteration:
                    return
        finally:
            if isinstance(source, AsyncGeneratorType):
                self._model.loop().run_until_complete(source.aclose())
