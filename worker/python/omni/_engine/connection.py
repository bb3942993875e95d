"""The data connection: frames out of a byte stream, with the descriptors that came beside them, and bytes back.

Used by all three runners, blocking or not, as the socket is set. The scheduler is trusted; what does not parse is a
defect and ends the engine.
"""

from __future__ import annotations

import array
import os
import socket
import threading
import time
from collections import deque

from omni._engine import wire
from omni._engine.descriptors import above_standard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple

    from omni._json import Buffer

    class Frame(NamedTuple):
        """A frame. At run time it is a plain tuple: a named one costs more to make than to read."""

        kind: int
        flags: int
        code: int
        number: int
        payload: Buffer


READ = 64 * 1024
"""Bytes per read. A longer frame is read into a buffer of its own size."""
_HEADER = wire.HEADER.size
_ANCILLARY = socket.CMSG_SPACE(4 * array.array("i").itemsize)


class Closed(Exception):
    """The other side has closed the connection: this scheduler's life is over."""


class Unusable(Exception):
    """The data socket is not what it was: the model has closed or replaced the engine's descriptor. Ends the engine."""


class Connection:
    """A data connection, for the life of one scheduler."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.closed = False
        self.writing = threading.Lock()
        """Held while writing, where several threads write."""
        self.received = 0.0
        """When the last read returned, on the monotonic clock: deadlines count from here."""
        self._descriptors: deque[int] = deque()
        self._rest = b""
        self._large: bytearray | None = None
        self._filled = 0

    def read(self) -> list[Frame]:
        """Waits for bytes once, and returns the frames that are complete now, perhaps none.

        Raises `Closed` at the end of the connection, `BlockingIOError` on a non-blocking socket without bytes.
        """
        if self._large is not None:
            return self._read_large(self._large)
        try:
            data, ancillary, flags, _ = self.socket.recvmsg(READ, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
        except OSError as err:
            raise self._what(err) from err
        self.received = time.monotonic()
        if ancillary or flags & socket.MSG_CTRUNC:
            self._keep(ancillary, flags)
        if not data:
            raise Closed
        if self._rest:
            data = self._rest + data
        frames = []
        at, size = 0, len(data)
        unpack = wire.HEADER.unpack_from
        while size - at >= _HEADER:
            length, kind, flags, code, number = unpack(data, at)
            stop = at + _HEADER + length
            if stop > size:
                if length > READ:
                    self._large = bytearray(_HEADER + length)
                    self._filled = size - at
                    self._large[: self._filled] = data[at:]
                    at = size
                break
            frames.append((kind, flags, code, number, data[at + _HEADER : stop]))
            at = stop
        self._rest = data[at:]
        return frames  # type: ignore[return-value]

    def _read_large(self, large: bytearray) -> list[Frame]:
        view = memoryview(large)
        try:
            count, ancillary, flags, _ = self.socket.recvmsg_into(
                [view[self._filled :]], _ANCILLARY, socket.MSG_CMSG_CLOEXEC
            )
        except OSError as err:
            raise self._what(err) from err
        self.received = time.monotonic()
        if ancillary or flags & socket.MSG_CTRUNC:
            self._keep(ancillary, flags)
        if not count:
            raise Closed
        self._filled += count
        if self._filled < len(large):
            return []
        self._large = None
        _, kind, flags, code, number = wire.HEADER.unpack_from(large)
        return [(kind, flags, code, number, view[_HEADER:])]  # type: ignore[list-item]

    def _what(self, error: OSError) -> Exception:
        if isinstance(error, BlockingIOError):
            return error
        if isinstance(error, ConnectionResetError):
            return Closed()
        return Unusable(f"reading from the data connection: {error}")

    def _keep(self, ancillary: list[tuple[int, int, bytes]], flags: int) -> None:
        """Descriptors wait, in order, for their frames. One the kernel had to drop keeps its place as -1."""
        found = array.array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                found.frombytes(data[: len(data) - len(data) % found.itemsize])
        self._descriptors.extend(map(above_standard, found))
        if flags & socket.MSG_CTRUNC:
            self._descriptors.append(-1)

    def descriptor(self) -> int:
        """The descriptor of the next request with a streamed body; -1 when this process had no room for it."""
        return self._descriptors.popleft() if self._descriptors else -1

    def send(self, data: Buffer, more: Buffer | None = None) -> None:
        """Writes all of it; waits. Raises `Closed`, or `Unusable`."""
        try:
            self.socket.sendall(data)
            if more is not None:
                self.socket.sendall(more)
        except (BrokenPipeError, ConnectionResetError):
            raise Closed from None
        except OSError as err:
            if self.closed:
                raise Closed from None
            raise Unusable(f"writing to the data connection: {err}") from err

    def close(self) -> None:
        """Closes the socket and the descriptors that no request took."""
        self.closed = True
        while self._descriptors:
            left = self._descriptors.popleft()
            if left >= 0:
                os.close(left)
        self.socket.close()
