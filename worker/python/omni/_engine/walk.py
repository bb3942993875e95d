"""Walks a stream in the event loop: its chunks become frames, as the scheduler's credit and the socket have room.

Called by `tasks`, in the task of a request. Invariants: no more than the credit is under way; a stream that waits for
nothing does not keep other requests from the loop (`Burst`).
"""

from __future__ import annotations

import asyncio
import types
from time import monotonic

from omni._engine import outcome, wire
from omni.errors import Unserialisable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator
    from typing import Any

    from omni._engine.answer import Stream
    from omni._engine.batch import Batch, Member
    from omni._engine.cancel import Cancels
    from omni._engine.request import WireRequest
    from omni._engine.writer import Writer


class InFlight:
    """A request or batch in flight, and the credit of a request's stream."""

    __slots__ = ("cancels", "credit", "job", "number", "started", "task", "waiter")

    def __init__(self, number: int, job: WireRequest | Batch, cancels: Cancels) -> None:
        self.number = number
        self.job = job
        self.cancels = cancels
        self.task: asyncio.Task[None] | None = None
        self.started = False
        self.credit = wire.INITIAL_CREDIT
        self.waiter: asyncio.Future[None] | None = None

    def grant(self, credit: int) -> None:
        """Adds credit from the scheduler."""
        self.credit += credit
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def wait(self, need: int) -> None:
        """Waits for this much credit. A cancelled request gets none, though its generator may go on regardless."""
        while self.credit < need:
            if self.cancels.reason(self.number) is not None:
                raise asyncio.CancelledError
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter


class Burst:
    """Chunks that a stream which waits for nothing may produce before the loop turns and sends them: one at first,
    eight at a time after eight that took no time, and none after fifty microseconds. A turn of the loop costs as much
    as a chunk. A generator that computes for its chunks yields after each, and a few chunks at once do not wait for
    the computation of the next one.
    """

    __slots__ = ("_quick", "_until")

    MOST = 8
    SECONDS = 50e-6

    def __init__(self) -> None:
        self._quick = 0
        self._until = 0.0

    def over(self) -> bool:
        """True if the loop has to turn after this chunk."""
        if monotonic() > self._until:
            self._quick = 0
            return True
        self._quick += 1
        return self._quick < Burst.MOST or self._quick % Burst.MOST == 0

    def begin(self) -> None:
        """Begins the next burst, after a turn of the loop."""
        self._until = monotonic() + Burst.SECONDS


async def walk(entry: InFlight, stream: Stream, writer: Writer) -> bytes:
    """Sends a stream's chunks; returns its last frame."""
    chunks, burst = stream.chunks, Burst()
    error: BaseException | None = None
    try:
        if hasattr(chunks, "__aiter__"):
            seen = writer.turns
            async for item in chunks:
                waited = writer.turns != seen
                more = _put(entry, stream, writer, item)
                if more is not None:
                    await more
                if not waited and burst.over():  # else the chunk would leave after what it computes for the next one
                    await _pause()
                    burst.begin()
                seen = writer.turns
        elif hasattr(chunks, "__iter__"):
            for item in chunks:
                more = _put(entry, stream, writer, item)
                if more is not None:
                    await more
                if burst.over():
                    await _pause()
                    burst.begin()
        else:
            raise Unserialisable(f"a stream needs something to iterate over, not {type(chunks).__qualname__}")
    except BaseException as err:
        error = err
        raise
    finally:
        await _close(chunks, error)
    return stream.opening() + wire.end(entry.number)


async def walk_batch(batch: Batch, result: Any, writer: Writer) -> None:
    """Sends the results of a batch, or the pieces of a generator that yields lists. Each member that is left open by
    what it raises is open afterwards."""
    if not hasattr(result, "__next__") and not hasattr(result, "__aiter__"):
        streams = []
        for member, last in batch.results(result):
            if isinstance(last, bytes):
                writer.write(last)
            else:
                streams.append((member, last))
        for member, stream in streams:
            try:
                ended = batch.end(member, await walk(member.flight, stream, writer))
            except BaseException as err:
                if _is_of_batch(batch, err):
                    raise
                ended = batch.failed_piece(member, err)
            writer.write(ended)
        return
    batch.open_streams()
    error: BaseException | None = None
    try:
        if hasattr(result, "__aiter__"):
            async for step in result:
                await _send_step(batch, step, writer)
                if batch.is_over:
                    return
        else:
            for step in result:
                await _send_step(batch, step, writer)
                if batch.is_over:
                    return
        for member in batch.open_members():
            writer.write(batch.completed(member))
    except BaseException as err:
        error = err
        raise
    finally:
        await _close(result, error)


async def _send_step(batch: Batch, step: object, writer: Writer) -> None:
    """Sends one list of pieces, and lets the loop turn."""
    for member, piece in batch.pieces(step):
        last = batch.leaves(member, piece)
        if not last:
            last = await _send_piece(batch, member, piece, writer)
        if last:
            writer.write(last)
    await _pause()


async def _send_piece(batch: Batch, member: Member, piece: object, writer: Writer) -> bytes:
    """Sends a piece; the member's last frames where it was the last one."""
    stream = member.stream
    assert stream is not None
    try:
        more = _put(member.flight, stream, writer, piece)
        if more is not None:
            await more
    except BaseException as err:
        if _is_of_batch(batch, err):
            raise
        return batch.failed_piece(member, err)
    return batch.completed(member) if stream.finished else b""


def _is_of_batch(batch: Batch, error: BaseException) -> bool:
    """True if the batch is cancelled, not one member."""
    return isinstance(error, asyncio.CancelledError) and batch.is_cancelled


@types.coroutine
def _pause() -> Generator[None, None, None]:
    """Lets the loop turn once."""
    yield


def _put(entry: InFlight, stream: Stream, writer: Writer, item: object) -> Coroutine[None, None, None] | None:
    """Writes an event that may be sent at once, as most may; for anything else returns a coroutine that sends it."""
    flags, payload = stream.encode(item)
    cost = len(payload) + wire.HEADER_LENGTH
    if flags == wire.BYTES or writer.full or cost > entry.credit:
        return _chunk(entry, stream, writer, flags, payload)
    entry.credit -= cost
    event = wire.chunk_header(entry.number, flags, len(payload)) + payload
    if stream.opened:
        writer.write(event)
    else:
        writer.begin(stream.opening() + event)
    return None


async def _chunk(entry: InFlight, stream: Stream, writer: Writer, flags: int, payload: bytes | memoryview) -> None:
    number, size, write = entry.number, len(payload), writer.write
    opening = stream.opening()
    if opening:
        write = writer.begin
        write(opening)
    if writer.full:
        await writer.drained()
    if flags != wire.BYTES:
        cost = size + wire.HEADER_LENGTH
        if cost > entry.credit:
            await entry.wait(cost)
        entry.credit -= cost
        write(wire.chunk_header(number, flags, size) + payload)
        return
    if stream.begins_with_nothing(flags, size):
        entry.credit -= wire.HEADER_LENGTH
        write(wire.chunk_header(number, flags, 0))
    at = 0
    while at < size:
        take = min(size - at, wire.MAX_CHUNK)
        cost = take + wire.HEADER_LENGTH
        if cost > entry.credit:
            await entry.wait(cost)
        if writer.full:
            await writer.drained()
        entry.credit -= cost
        write(wire.chunk_header(number, flags, take) + payload[at : at + take])
        at += take


async def _close(source: Any, error: BaseException | None) -> None:
    """Ends an asynchronous generator that will not be walked on; a cancellation is thrown into it."""
    if not isinstance(source, types.AsyncGeneratorType):
        outcome.close(source, error)
        return
    if source.ag_frame is None:
        return
    try:
        if isinstance(error, asyncio.CancelledError):
            await source.athrow(error)
        await source.aclose()
    except BaseException as err:
        if err is not error and not isinstance(err, StopAsyncIteration):
            outcome.log_failure(err)
