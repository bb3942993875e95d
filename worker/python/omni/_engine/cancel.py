"""Cancelled requests of a connection, and the thread that receives cancellations.

The thread sleeps in `poll` and costs an idle engine nothing. It reads the cancel socket and watches data and control
sockets for their end only: a handler that computes must learn that its scheduler is gone, and with the worker gone
there is nothing left to serve. The runner decides how a cancellation reaches a running handler (`notify`).
"""

from __future__ import annotations

import os
import select
import socket

from omni._engine import wire
from omni.errors import Cancelled, DeadlineExceeded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_BOUND = 4096
_HANGUP = select.POLLRDHUP | select.POLLHUP | select.POLLERR | select.POLLNVAL
_STATUS = {wire.CLIENT_GONE: 499, wire.DEADLINE: 504, wire.SHUTDOWN: 503}


class Cancels:
    """The cancelled requests. A cancel may come before its request, so numbers not yet seen are kept, the oldest
    forgotten first when there are too many."""

    __slots__ = ("_batches", "_reasons", "closed")

    def __init__(self) -> None:
        self._reasons: dict[int, int] = {}
        self._batches: dict[int, Gathered] = {}
        """Batches by the numbers of their members."""
        self.closed = False
        """The connection has ended, which cancels everything on it."""

    def add(self, number: int, reason: int) -> list[int]:
        """Adds a cancelled request; what is cancelled with it: itself, and its batch if it was the last of it."""
        if len(self._reasons) >= _BOUND:
            del self._reasons[next(iter(self._reasons))]
        self._reasons[number] = reason
        batch = self._batches.get(number)
        return [number] if batch is None or not self._leave(batch, number, reason) else [number, batch.number]

    def gather(self, number: int, members: list[int]) -> None:
        """Requests are a batch from now on, which is cancelled when all of them are."""
        if members != [number]:
            batch = Gathered(number, members)
            for member in members:
                self._batches[member] = batch
            for member in members:  # after the lines above: one of the two threads sees the other
                reason = self._reasons.get(member)
                if reason is not None:
                    self._leave(batch, member, reason)

    def _leave(self, batch: Gathered, member: int, reason: int | None) -> bool:
        """A member has ended, or is cancelled for a reason; True if the batch is cancelled with that. Two threads may
        call this: the later one sees that none is left."""
        if reason is not None:
            batch.reason = reason
        batch.left.discard(member)
        if batch.left or batch.reason is None:
            return False
        self._reasons[batch.number] = batch.reason
        return True

    def reason(self, number: int) -> int | None:
        """Why this request is cancelled; None when it is not."""
        if self.closed:
            return wire.CLIENT_GONE
        return self._reasons.get(number)

    def forget(self, number: int) -> None:
        """The request has ended."""
        if self._reasons:
            self._reasons.pop(number, None)
        if self._batches:
            batch = self._batches.pop(number, None)
            if batch is not None:
                self._leave(batch, number, None)


class Gathered:
    """A batch, those of its members that have neither ended nor been cancelled, and the reason of the last
    cancellation."""

    __slots__ = ("left", "number", "reason")

    def __init__(self, number: int, members: list[int]) -> None:
        self.number = number
        self.left = set(members)
        self.reason: int | None = None


def exception(reason: int) -> Cancelled:
    """The exception that a `def` handler sees."""
    if reason == wire.DEADLINE:
        return DeadlineExceeded("the deadline has passed")
    return Cancelled("the client hung up" if reason == wire.CLIENT_GONE else "the instance is going away")


def frame(number: int, reason: int) -> bytes:
    """The last frame of a cancelled request."""
    return wire.error(number, wire.ORIGIN_CANCELLED, _STATUS.get(reason, 499), "cancelled")


def parse(packet: bytes) -> tuple[int, int]:
    """Number and reason of a packet of the cancel wire."""
    length, kind, _, code, number = wire.HEADER.unpack(packet)
    if kind != wire.CANCEL or length:
        raise ValueError(f"a frame of kind {kind} came on the cancel wire")
    return number, code


class Watch:
    """Listens for one connection. `run` is the thread; `notify(number)` is called for each cancel, `notify(None)` once
    when the connection has ended."""

    def __init__(
        self,
        cancel: socket.socket,
        data: socket.socket,
        control: socket.socket,
        cancels: Cancels,
        notify: Callable[[int | None], None],
    ) -> None:
        self._cancel = cancel
        self._data = data
        self._cancels = cancels
        self._notify = notify
        self._control_fd = control.fileno()
        self._poll = select.poll()
        self._poll.register(cancel, select.POLLIN | _HANGUP)
        self._poll.register(data, _HANGUP)
        self._poll.register(control, _HANGUP)

    def run(self) -> None:
        """Returns when the connection has ended."""
        while not self._step():
            pass
        self._cancels.closed = True
        self._notify(None)
        shut(self._data)  # wakes a runner that waits for requests

    def _step(self) -> bool:
        """Waits once; True at the end of the connection."""
        for fd, event in self._poll.poll():
            if fd == self._control_fd:
                os._exit(1)  # omni-worker is gone, and nothing else could end this process
            if event & ~select.POLLIN:
                return True
            packet = self._cancel.recv(wire.HEADER.size)
            if not packet:
                return True
            number, reason = parse(packet)
            for cancelled in self._cancels.add(number, reason):
                self._notify(cancelled)
        return False


def shut(sock: socket.socket) -> None:
    """Shuts a socket down in both directions, and wakes any thread that waits on it here."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # ended already
