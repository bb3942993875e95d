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
from omni._engine.connection import Closed, Connection, Unusable
from omni._engine.descriptors import end_copy
from omni._engine.request import WireRequest
from omni._engine.walk import Turn, walk
from omni._engine.writer import Writer
from omni.context import Context, request_now

TYPE_CHECKING = False
if TYPE_CHECKING:
    from omni._engine.model import Model


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Tasks:
    """Serves in the model's event loop. There are two data connections while one scheduler takes over from another."""

    mode = "concurrent"

    def __init__(self, model: Model) -> None:
        self._model = model
        self._loop = model.loop()
        self._room = Room(model.concurrency)
        self._sessions: set[Session] = set()
        self._until: asyncio.Future[None] = self._loop.create_future()
        self._finishes = False
        self._broken: BaseException | None = None

    def wait(self, control: socket.socket) -> None:
        """Serves, and lets the model's own background tasks run, until the worker's next message is there."""
        self._until = self._loop.create_future()
        self._loop.add_reader(control, _settle, self._until)
        self._run(control)
        if self._sessions:
            _look(control)

    def serve(self, data: socket.socket, cancel_socket: socket.socket, control: socket.socket) -> None:
        """Takes a connection. Tasks that ignore their cancellation at its end run on, unheard."""
        session = Session(self._model, self._loop, self._room, data, cancel_socket)
        self._sessions.add(session)
        session.ended.add_done_callback(lambda _: self._end(session))

    def finish(self, control: socket.socket) -> None:
        """Serves until no connection is left. Only the worker's own end matters meanwhile."""
        self._finishes = True
        if self._sessions:
            self._until = self._loop.create_future()
            self._loop.add_reader(control, lambda: _look(control) and self._loop.remove_reader(control))
            self._run(control)

    def _run(self, control: socket.socket) -> None:
        try:
            self._loop.run_until_complete(self._until)
        finally:
            self._loop.remove_reader(control)
        if self._broken is not None:
            raise self._broken

    def _end(self, session: Session) -> None:
        self._sessions.discard(session)
        session.close()
        self._broken = self._broken or session.ended.exception()
        if self._broken is not None or (self._finishes and not self._sessions):
            _settle(self._until)


def _look(control: socket.socket) -> bool:
    """Ends this process when the worker is gone: who could end it otherwise?"""
    if not control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
        os._exit(1)
    return True


class Room:
    """So many requests at a time, those of all connections together; further ones wait in the order in which they
    came."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._waiting: deque[tuple[Session, Turn]] = deque()

    def enter(self, session: Session, turn: Turn) -> None:
        """A request is started, or waits."""
        if self._free > 0:
            self._free -= 1
            session.start(turn)
        else:
            self._waiting.append((session, turn))

    def leave(self, count: int = 1) -> None:
        """So many have ended."""
        self._free += count
        while self._free > 0 and self._waiting:
            self.enter(*self._waiting.popleft())

    def forget(self, session: Session) -> None:
        """A connection has ended: what it had waiting is not started."""
        gone = [turn for owner, turn in self._waiting if owner is session]
        self._waiting = deque(one for one in self._waiting if one[0] is not session)
        for turn in gone:
            turn.request.close()


class Session:
    """One data connection."""

    def __init__(
        self,
        model: Model,
        loop: asyncio.AbstractEventLoop,
        room: Room,
        data: socket.socket,
        cancel_socket: socket.socket,
    ) -> None:
        self._model = model
        self._handler = model.handler
        self._instance = model.instance
        self._loop = loop
        self._room = room
        self._connection = Connection(data)
        self._cancel = cancel_socket
        self._cancels = cancel.Cancels()
        self._turns: dict[int, Turn] = {}
        self._check: asyncio.Task[None] | None = None
        """The last check; the loop itself would forget a task that nobody holds."""
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
        for turn in self._turns.values():
            if turn.task is not None and turn.started:
                turn.task.cancel()
        self._room.forget(self)
        self._room.leave(len(self._turns))
        self._connection.close()
        self._cancel.close()

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
        self._cancels.add(number, reason)
        turn = self._turns.get(number)
        if turn is not None and turn.started and turn.task is not None:
            turn.task.cancel()

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
                descriptor = self._connection.descriptor() if flags & wire.BODY_STREAM else None
                request = WireRequest(payload, self._connection.received, descriptor)
                self._room.enter(self, Turn(number, request, self._cancels))
            elif kind == wire.CREDIT:
                turn = self._turns.get(number)
                if turn is not None:
                    turn.grant(wire.HEAD_LENGTH.unpack(payload)[0])
            elif kind == wire.CHECK:
                self._check = self._loop.create_task(self._answer_check(number, flags & wire.OWN_CHECK != 0))
            else:
                self._end(Unusable(f"the scheduler sent a frame of kind {kind}"))

    async def _answer_check(self, number: int, own: bool) -> None:
        problem = await self._model.check_in_loop() if own else None
        self._writer.write(wire.health(number, problem))
        self._writer.flush()

    def start(self, turn: Turn) -> None:
        """There is room for this request."""
        self._turns[turn.number] = turn
        turn.task = self._loop.create_task(self._answer(turn))

    async def _answer(self, turn: Turn) -> None:
        number, request = turn.number, turn.request
        turn.started = True
        context = Context(self._instance, request, self._cancels, number)
        request_now.set(request)
        try:
            if self._cancels.reason(number) is not None:
                raise asyncio.CancelledError
            result = self._handler(request, context)
            if hasattr(result, "__await__"):
                result = await result
            last = whole(number, result)
            if type(last) is not bytes:
                last = await walk(turn, last, self._writer)  # type: ignore[arg-type]
        except BaseException as err:
            last = outcome.failed(number, err, self._cancels.reason(number), skip=1)
        finally:
            end_copy()
            request.close()
            output.ended(request)
        if context._usage:
            last = wire.usage(number, context._usage) + last
        self._cancels.forget(number)
        del self._turns[number]
        self._writer.write(last)
        if not self._turns:
            self._writer.flush()
        if not self._cancels.closed:  # else its room was given back with the connection
            self._room.leave()
