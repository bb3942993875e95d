"""Writes frames to the data socket from an event loop: what one turn of the loop brings leaves in one write.

Bounded by its users: streams wait for `drained` while it is `full`, and whole answers are as many as requests
in flight.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

_AT_ONCE = 64 * 1024
_BEGINNINGS = 8
"""Streams whose first frames leave together: a turn of the loop in which many begin takes milliseconds."""
_FULL = 1024 * 1024


class Writer:
    """The writing half of a data connection in a loop. `on_error` gets None when the other side has closed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        on_error: Callable[[BaseException | None], None],
    ) -> None:
        self._loop = loop
        self._socket = sock
        self._on_error = on_error
        self._parts: list[bytes] = []
        self._size = 0
        self._rest: memoryview | None = None
        self._scheduled = False
        self._closed = False
        self._waiters: list[asyncio.Future[None]] = []
        self.turns = 0
        """Grows whenever the loop has turned after a write."""

    @property
    def full(self) -> bool:
        """True if streams should wait."""
        return self._size > _FULL

    async def drained(self) -> None:
        """Returns when it is not full any more, or closed."""
        while self.full and not self._closed:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def write(self, data: bytes) -> None:
        """Takes frames; they leave at the end of this turn of the loop."""
        if self._closed:
            return
        self._parts.append(data)
        self._size += len(data)
        if self._size > _AT_ONCE:
            self.flush()
        elif not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def begin(self, data: bytes) -> None:
        """Queues the first frames of a stream; if many streams begin in one turn, they are sent before it ends.

        The reader of these frames gets the processor early if it waits for this one: the kernel wakes it on our
        processor.
        """
        self.write(data)
        if len(self._parts) >= _BEGINNINGS:
            self.flush()
            os.sched_yield()

    def _turn(self) -> None:
        self.turns += 1
        self._scheduled = False
        self.flush()

    def flush(self) -> None:
        """Writes what the socket takes now; the rest follows when there is room."""
        if self._rest is not None or self._closed or not self._parts:
            return
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._put(memoryview(data))

    def _put(self, view: memoryview) -> None:
        try:
            sent = self._socket.send(view)
        except BlockingIOError:
            sent = 0
        except (BrokenPipeError, ConnectionResetError):
            self._fail(None)
            return
        except OSError as err:
            self._fail(err)
            return
        self._size -= sent
        if sent == len(view):
            if self._rest is not None:
                self._rest = None
                self._loop.remove_writer(self._socket)
        else:
            if self._rest is None:
                self._loop.add_writer(self._socket, self._go_on)
            self._rest = view[sent:]
        if self._waiters and not self.full:
            self._wake()

    def _go_on(self) -> None:
        if self._rest is not None:
            self._put(self._rest)
        if self._rest is None:
            self.flush()

    def _fail(self, error: BaseException | None) -> None:
        self.close()
        self._on_error(error)

    def close(self) -> None:
        """Drops what is left; later writes too."""
        if self._rest is not None:
            self._loop.remove_writer(self._socket)
        self._closed = True
        self._parts.clear()
        self._rest = None
        self._size = 0
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
