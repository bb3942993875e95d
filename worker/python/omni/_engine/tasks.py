"""`async def` handlers: one event loop, one task per request.

Frames of one turn of the loop leave in one write. A generator that never waits cannot starve the others: after a few
chunks, or a few microseconds, the loop turns; so a chunk waits for nothing but the chunks of the same turn.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque

from omni._engine import cancel, outcome, output, wire
from omni._engine.answer import whole
from omni._engine.batch import Batch
from omni._engine.connection import Closed, Connection, Unusable
from omni._engine.descriptors import end_copy
from omni._engine.intake import Intake
from omni._engine.walk import InFlight, walk, walk_batch
from omni._engine.writer import Writer
from omni.context import Context, request_now

TYPE_CHECKING = False
if TYPE_CHECKING:
    from omni._engine.batch import Member
    from omni._engine.model import Model


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Tasks:
    """Serves in the model's event loop. There are two data connections while one scheduler takes over from another."""

    mode = "concurrent"

    def __init__(self, model: Model) -> None:
        self._model = model
        self._loop = model.loop()
        self._limit = ConcurrencyLimit(model.concurrency)
        self._connections: set[DataConnection] = set()
        self._until: asyncio.Future[None] = self._loop.create_future()
        self._finishes = False
        self._broken: BaseException | None = None
        self._report = b""
        model.begin_reports(self._send)

    def _send(self, report: bytes) -> None:
        """Sends a report that belongs to no request to all schedulers, those that are still to come included."""
        self._report = report
        for connection in self._connections:
            connection.send(report)

    def wait(self, control: socket.socket) -> None:
        """Serves, and lets the model's own background tasks run, until the worker's next message is there."""
        self._until = self._loop.create_future()
        self._loop.add_reader(control, _resolve, self._until)
        self._run(control)
        if self._connections:
            _check_worker(control)

    def serve(self, data: socket.socket, cancel_socket: socket.socket, control: socket.socket) -> None:
        """Takes a connection. Tasks that ignore their cancellation at its end run on; their answers are dropped."""
        connection = DataConnection(self._model, self._loop, self._limit, data, cancel_socket)
        self._connections.add(connection)
        if self._report:
            connection.send(self._report)
        connection.ended.add_done_callback(lambda _: self._end(connection))

    def finish(self, control: socket.socket) -> None:
        """Serves until no connection is left. Only the worker's own end matters meanwhile."""
        self._finishes = True
        if self._connections:
            self._until = self._loop.create_future()
            self._loop.add_reader(control, lambda: _check_worker(control) and self._loop.remove_reader(control))
            self._run(control)

    def _run(self, control: socket.socket) -> None:
        try:
            self._loop.run_until_complete(self._until)
        finally:
            self._loop.remove_reader(control)
        if self._broken is not None:
            raise self._broken

    def _end(self, connection: DataConnection) -> None:
        self._connections.discard(connection)
        connection.close()
        self._broken = self._broken or connection.ended.exception()
        if self._broken is not None or (self._finishes and not self._connections):
            _resolve(self._until)


def _check_worker(control: socket.socket) -> bool:
    """Ends this process when the worker is gone: nothing else could end it."""
    if not control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
        os._exit(1)
    return True


class ConcurrencyLimit:
    """Limits the requests of all connections together; further ones wait in the order in which they came."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._waiting: deque[tuple[DataConnection, InFlight]] = deque()

    def admit(self, connection: DataConnection, entry: InFlight) -> None:
        """Starts a request, or lets it wait."""
        if self._free > 0:
            self._free -= 1
            connection.start(entry)
        else:
            self._waiting.append((connection, entry))

    def release(self, count: int = 1) -> None:
        """Frees the places of ended requests, and starts waiting ones."""
        self._free += count
        while self._free > 0 and self._waiting:
            self.admit(*self._waiting.popleft())

    def drop(self, connection: DataConnection) -> None:
        """Drops the waiting requests of a connection that has ended."""
        gone = [entry for owner, entry in self._waiting if owner is connection]
        self._waiting = deque(one for one in self._waiting if one[0] is not connection)
        for entry in gone:
            entry.job.close()


class DataConnection:
    """A data connection, and its requests in the loop."""

    def __init__(
        self,
        model: Model,
        loop: asyncio.AbstractEventLoop,
        limit: ConcurrencyLimit,
        data: socket.socket,
        cancel_socket: socket.socket,
    ) -> None:
        self._model = model
        self._single = model.single
        self._instance = model.instance
        self._loop = loop
        self._limit = limit
        self._connection = Connection(data)
        self._cancel = cancel_socket
        self._cancels = cancel.Cancels()
        self._intake = Intake(model, self._connection, self._cancels)
        self._in_flight: dict[int, InFlight] = {}
        self._members: dict[int, InFlight] = {}
        """Members of the batches that are in flight."""
        self._check: asyncio.Task[None] | None = None
        """The last check; the loop itself keeps no reference to its tasks."""
        self.ended: asyncio.Future[None] = loop.create_future()
        data.setblocking(False)
        self._writer = Writer(loop, data, self._end)
        loop.add_reader(data, self._on_data)
        loop.add_reader(cancel_socket, self._on_cancel)

    def close(self) -> None:
        """Cancels all that is in flight. Nothing is written any more."""
        for sock in (self._connection.socket, self._cancel):
            self._loop.remove_reader(sock)
        self._cancels.closed = True
        self._writer.close()
        for entry in self._in_flight.values():
            if entry.task is not None and entry.started:
                entry.task.cancel()
        self._limit.drop(self)
        self._limit.release(len(self._in_flight))
        self._intake.close()
        self._connection.close()
        self._cancel.close()

    def send(self, frame: bytes) -> None:
        """Sends a frame that belongs to no request."""
        self._writer.write(frame)

    def _end(self, error: BaseException | None = None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)

    def _on_cancel(self) -> None:
        try:
            packet = self._cancel.recv(wire.HEADER.size, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self._end()
            return
        number, reason = cancel.parse(packet)
        for cancelled in self._cancels.add(number, reason):
            entry = self._in_flight.get(cancelled)
            if entry is not None and entry.started and entry.task is not None:
                entry.task.cancel()
            member = self._members.get(cancelled)
            if member is not None:
                member.grant(0)  # wakes its stream, which leaves

    def _on_data(self) -> None:
        try:
            frames = self._connection.read()
        except BlockingIOError:
            return
        except Closed:
            self._end()
            return
        except Unusable as err:
            self._end(err)
            return
        for kind, flags, _, number, payload in frames:
            if kind == wire.REQUEST:
                try:
                    job = self._intake.request(number, flags, payload)
                except Unusable as err:
                    self._end(err)
                    return
                if job is not None:
                    self._limit.admit(self, InFlight(*job, self._cancels))
            elif kind == wire.BATCH:
                try:
                    self._intake.begin(number, flags, payload)
                except Unusable as err:
                    self._end(err)
                    return
            elif kind == wire.CREDIT:
                entry = self._in_flight.get(number) or self._members.get(number)
                if entry is not None:
                    entry.grant(wire.HEAD_LENGTH.unpack(payload)[0])
            elif kind == wire.CHECK:
                self._check = self._loop.create_task(self._answer_check(number, flags & wire.OWN_CHECK != 0))
            else:
                self._end(Unusable(f"the scheduler sent a frame of kind {kind}"))

    async def _answer_check(self, number: int, own: bool) -> None:
        problem = await self._model.check_in_loop() if own else None
        self._writer.write(wire.health(number, problem))
        self._writer.flush()

    def start(self, entry: InFlight) -> None:
        """Starts a request that was admitted."""
        self._in_flight[entry.number] = entry
        answer = self._answer_batch if type(entry.job) is Batch else self._answer
        entry.task = self._loop.create_task(answer(entry))

    async def _answer(self, entry: InFlight) -> None:
        number, request = entry.number, entry.job
        assert not isinstance(request, Batch)
        entry.started = True
        context = Context(self._instance, request, self._cancels, number)
        request_now.set(request)
        try:
            if self._cancels.reason(number) is not None:
                raise asyncio.CancelledError
            function = self._single
            if request.counts_tokens or function is None:
                function = self._model.counter
            take, make = function.take, function.make
            if function.reads_body and request.is_streamed:
                await request.gather()
            given = request if take is None else take(request)
            result = function.function(given, context)
            if hasattr(result, "__await__"):
                result = await result
            last = whole(number, result) if make is None else make(number, result, given)
            if type(last) is not bytes:
                last = await walk(entry, last, self._writer)  # type: ignore[arg-type]
        except BaseException as err:
            last = outcome.failed(number, err, self._cancels.reason(number), skip=1)
        finally:
            end_copy()
            request.close()
            output.ended(request)
        if context._usage:
            last = wire.usage(number, context._usage) + last
        self._cancels.forget(number)
        self._finish(number, last)

    async def _answer_batch(self, entry: InFlight) -> None:
        batch = entry.job
        assert isinstance(batch, Batch)
        entry.started = True
        for member in batch.members:
            member.flight = self._members[member.number] = InFlight(member.number, member.request, self._cancels)
        try:
            last, parts = await self._answer_part(batch)
            while parts:
                self._writer.write(last)
                last, halves = await self._answer_part(batch.part(parts.pop(0)))
                parts[:0] = halves
        finally:
            batch.close()
            output.ended(batch.members[0].request)
        for member in batch.members:
            del self._members[member.number]
        self._finish(batch.number, last)

    async def _answer_part(self, batch: Batch) -> tuple[bytes, list[list[Member]]]:
        """Calls the handler. Returns last frames of members that are open, or members to call it for again."""
        assert self._model.batch is not None
        context = batch.context(self._instance)
        request_now.set(batch.members[0].request)
        try:
            if self._cancels.reason(batch.number) is not None:
                raise asyncio.CancelledError
            if self._model.batch.reads_body:
                await batch.gather()
            given = batch.take()
            result: object = self._model.batch.function(given, context) if given else None
            if hasattr(result, "__await__"):
                result = await result
            for _, frames in batch.left_out():
                self._writer.write(frames)
            if given:
                await walk_batch(batch, result, self._writer)
        except BaseException as err:
            halves = batch.halves(err)
            return (b"", halves) if halves else (batch.failed(err), [])
        finally:
            end_copy()
            batch.forget()
        return b"", []

    def _finish(self, number: int, last: bytes) -> None:
        """Sends the last frames of a request or batch, and frees its place."""
        del self._in_flight[number]
        self._writer.write(last)
        if not self._in_flight:
            self._writer.flush()
        if not self._cancels.closed:  # else its place was freed with the connection
            self._limit.release()
