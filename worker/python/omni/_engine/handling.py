"""A `def` handler's call from request to last frame: the part that serial and threaded runners share.

The runners differ in how a cancellation interrupts the thread. It happens only between `_arm` and `_disarm`, at most
once, at any instruction. Frames are written outside that window: none is ever torn. The pattern is always

    try:
        try:
            self._arm(number)
            …the model's code…
        finally:
            self._disarm()
    except BaseException:
        self._disarm()      # the interruption may have come inside the first one

Invariant: on every way out the window is closed, and exactly one last frame follows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from omni._engine import outcome, output, wire
from omni._engine.answer import Stream, whole
from omni._engine.batch import Batch
from omni._engine.connection import Closed, Unusable
from omni.context import Context, request_now
from omni.errors import Unserialisable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from omni._engine.batch import Member
    from omni._engine.cancel import Cancels
    from omni._engine.connection import Connection
    from omni._engine.intake import Job
    from omni._engine.model import Model
    from omni._engine.request import WireRequest
    from omni._json import Buffer

_END: Any = object()
_JOIN = 16 * 1024
"""Up to this many bytes, copying header and payload together is cheaper than a second system call."""

_TOGETHER = 256 * 1024
"""Bytes of a batch's answers that are collected before they are written."""


def _joined(number: int, stream: Stream) -> bytes:
    """All frames of a short stream whose pieces are there. Nothing for any other."""
    if not stream.is_short(_JOIN):
        return b""
    chunks = []
    for piece in stream.chunks:
        flags, payload = stream.encode(piece)
        chunks.append(wire.chunk_header(number, flags, len(payload)) + payload)
    return b"".join([stream.opening(), *chunks, wire.end(number)])


class Handling(ABC):
    """Answers one request at a time, in the thread it is called from."""

    _connection: Connection
    _cancels: Cancels

    def __init__(self, model: Model) -> None:
        self._model = model
        self._single = model.single
        self._instance = model.instance
        self._credit = 0
        self._members: dict[int, Member] = {}
        """Members of the batch whose streams are open, for their credit."""

    @abstractmethod
    def _arm(self, number: int) -> None:
        """Opens the window; raises at once when the request is cancelled already."""

    @abstractmethod
    def _disarm(self) -> None:
        """Closes the window. May be called when it is closed."""

    @abstractmethod
    def _send(self, data: bytes, more: Buffer | None = None) -> None:
        """Writes frames, both parts in one piece."""

    @abstractmethod
    def _await_credit(self, number: int, need: int) -> None:
        """Returns when at least `need` bytes of credit are there; cancellable."""

    @abstractmethod
    def _begin_member(self, member: Member) -> None:
        """Makes a member's stream the one whose credit is counted and whose cancellation interrupts."""

    @abstractmethod
    def _leave_member(self, member: Member, batch: int) -> None:
        """Goes back to the batch as a whole."""

    def _handle(self, job: Job) -> None:
        number, what = job
        if type(what) is Batch:
            self._answer_batch(number, what)
        else:
            self._answer(number, what)  # type: ignore[arg-type]

    def _answer(self, number: int, request: WireRequest) -> None:
        context = Context(self._instance, request, self._cancels, number)
        request_now.set(request)
        try:
            entry = self._single
            if request.counts_tokens or entry is None:
                entry = self._model.counter
            take, make = entry.take, entry.make
            try:
                self._arm(number)
                given = request if take is None else take(request)
                result = entry.function(given, context)
            finally:
                self._disarm()
            last = whole(number, result) if make is None else make(number, result, given)
            if type(last) is not bytes:
                last = self._walk(number, last)  # type: ignore[arg-type]
        except (Closed, Unusable):
            raise
        except BaseException as err:
            self._disarm()
            last = outcome.failed(number, err, self._cancels.reason(number), skip=1)
        finally:
            request.close()
        if context._usage:
            last = wire.usage(number, context._usage) + last
        self._send(last)
        self._cancels.forget(number)
        request_now.set(None)
        output.ended(request)

    def _answer_batch(self, number: int, batch: Batch) -> None:
        """Answers the members of a batch. Each has its last frame when this returns."""
        try:
            parts = self._answer_part(number, batch)
            while parts:
                parts[:0] = self._answer_part(number, batch.part(parts.pop(0)))
        finally:
            batch.close()
        request_now.set(None)
        output.ended(batch.members[0].request)

    def _answer_part(self, number: int, batch: Batch) -> list[list[Member]]:
        """Calls the handler; returns members for which it has to be called again."""
        context = batch.context(self._instance)
        request_now.set(batch.members[0].request)
        try:
            assert self._model.batch is not None
            function, result = self._model.batch.function, None
            try:
                self._arm(number)
                given = batch.take()
                if given:
                    result = function(given, context)
            finally:
                self._disarm()
            for _, last in batch.left_out():
                self._send(last)
            if hasattr(result, "__next__") or hasattr(result, "__aiter__"):
                self._walk_batch(number, batch, result)
            elif given:
                self._send_results(batch, result)
        except (Closed, Unusable):
            raise
        except BaseException as err:
            self._disarm()
            halves = batch.halves(err)
            if halves:
                return halves
            self._send(batch.failed(err))
        finally:
            self._members = {}
            batch.forget()
        return []

    def _send_results(self, batch: Batch, result: object) -> None:
        """Sends the answers that are whole, then those that are streams: these may wait for their clients."""
        frames, streams = bytearray(), []
        for member, last in batch.results(result):
            if isinstance(last, bytes):
                frames += last
                if len(frames) > _TOGETHER:
                    self._send(bytes(frames))
                    frames.clear()
            else:
                streams.append((member, last))
        self._send(bytes(frames))
        for member, stream in streams:
            self._begin_member(member)
            try:
                ended = batch.end(member, self._walk(member.number, stream))
            except (Closed, Unusable):
                raise
            except BaseException as err:
                self._disarm()
                ended = batch.failed_piece(member, err)
            finally:
                self._leave_member(member, batch.number)
            self._send(ended)

    def _walk_batch(self, number: int, batch: Batch, result: Any) -> None:
        """Sends the pieces of a generator that yields lists."""
        if not hasattr(result, "__iter__"):
            raise Unserialisable("an asynchronous stream needs an `async def` handler")
        batch.open_streams()
        self._members = {member.number: member for member in batch.members}
        source = iter(result)
        error = None
        try:
            while not batch.is_over:
                try:
                    self._arm(number)
                    step = next(source, _END)
                finally:
                    self._disarm()
                if step is _END:
                    self._send(b"".join(batch.completed(member) for member in batch.open_members()))
                    break
                for member, piece in batch.pieces(step):
                    self._send_piece(batch, member, piece)
        except BaseException as err:
            self._disarm()
            error = err
            raise
        finally:
            outcome.close(source, error)

    def _send_piece(self, batch: Batch, member: Member, piece: object) -> None:
        last = batch.leaves(member, piece)
        if not last:
            stream = member.stream
            assert stream is not None
            self._begin_member(member)
            try:
                self._chunk(member.number, stream, piece)
                if stream.finished:
                    last = batch.completed(member)
            except (Closed, Unusable):
                raise
            except BaseException as err:
                self._disarm()
                last = batch.failed_piece(member, err)
            finally:
                self._leave_member(member, batch.number)
        if last:
            self._send(last)

    def _walk(self, number: int, stream: Stream) -> bytes:
        """Sends a stream's chunks; returns its last frame."""
        chunks: Iterable[object] = stream.chunks
        if not hasattr(chunks, "__iter__"):
            raise Unserialisable("an asynchronous stream needs an `async def` handler")
        whole = _joined(number, stream)
        if whole:
            return whole
        self._credit = wire.INITIAL_CREDIT
        source = iter(chunks)
        error = None
        try:
            while True:
                try:
                    self._arm(number)
                    item = next(source, _END)
                finally:
                    self._disarm()
                if item is _END:
                    return stream.opening() + wire.end(number)
                self._chunk(number, stream, item)
        except BaseException as err:
            self._disarm()
            error = err
            raise
        finally:
            outcome.close(source, error)

    def _chunk(self, number: int, stream: Stream, item: object) -> None:
        flags, payload = stream.encode(item)
        opening = stream.opening()
        size = len(payload)
        if flags != wire.BYTES:
            cost = size + wire.HEADER_LENGTH
            if cost > self._credit:
                if opening:
                    self._send(opening)
                    opening = b""
                self._await_credit(number, cost)
            self._credit -= cost
            self._send(opening + wire.chunk_header(number, flags, size) + payload)
            return
        if opening:
            self._send(opening)
        if stream.begins_with_nothing(flags, size):
            self._credit -= wire.HEADER_LENGTH
            self._send(wire.chunk_header(number, flags, 0))
        at = 0
        while at < size:
            take = min(size - at, wire.MAX_CHUNK)
            cost = take + wire.HEADER_LENGTH
            if cost > self._credit:
                self._await_credit(number, cost)
            self._credit -= cost
            header = wire.chunk_header(number, wire.BYTES, take)
            if take <= _JOIN:
                self._send(header + payload[at : at + take])
            else:
                self._send(header, payload[at : at + take])
            at += take
