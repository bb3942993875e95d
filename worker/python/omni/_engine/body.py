"""Bodies that are not here yet: they come through a socket of their own while the handler reads.

Made by `omni._engine.request` for a request that came with a descriptor. The socket ends with the body; a body that was
cut off ends with a reset, so half of one is never taken for the whole. For a model that the node trusts with it, the
socket brings what the node had read already, and then the client's connection itself: exactly the rest of the body is
read from that, and nothing is ever written to it.
"""

from __future__ import annotations

import array
import errno
import io
import socket

from omni import errors
from omni.request import Body, BodyStream

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Iterator
    from typing import Any, BinaryIO

_PIECE = 1 << 20
_PATIENT = 1e6
"""Seconds, which no request lasts. A timeout keeps O_NONBLOCK, which the node's copy of the connection needs."""


class SocketStream(BodyStream):
    """The body behind a descriptor, in pieces; it can be walked once."""

    def __init__(self, descriptor: int, length: int | None, handed: bool = False) -> None:
        if descriptor < 0:
            raise OSError(errno.EMFILE, "the model has too many open files: there was no room for the request's body")
        self._socket = socket.socket(fileno=descriptor)
        self._length = length
        self._handed = handed
        self._awaited = handed
        self._first = b""
        self._got = 0
        self._reader: asyncio.Task[Any] | None = None
        """The task that waits at the socket in an event loop."""

    def __iter__(self) -> Iterator[bytes]:
        while True:
            piece = self.read(_PIECE)
            if not piece:
                break
            yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        import asyncio

        loop = asyncio.get_running_loop()
        first = self._begin(blocking=False)
        if first:
            yield self._took(first)
        while True:
            self._reader = asyncio.current_task()
            try:
                piece = await loop.sock_recv(self._socket, self._most(_PIECE))
            except ConnectionResetError:
                raise self._broken_off() from None
            finally:
                self._reader = None
            if not self._took(piece):
                break
            yield piece

    def read(self, size: int) -> bytes:
        """Waits for the next piece, of at most `size` bytes; empty at the end of a whole body."""
        first = self._begin(blocking=True)
        if first:
            self._first = first[size:]
            return self._took(first[:size])
        try:
            return self._took(self._socket.recv(self._most(size)))
        except ConnectionResetError:
            raise self._broken_off() from None

    def read_into(self, buffer: memoryview) -> int:
        """As `read`, into a buffer; returns the count."""
        first = self._begin(blocking=True)
        if first:
            count = min(len(first), len(buffer))
            buffer[:count] = first[:count]
            self._first = first[count:]
        else:
            count = self._most(len(buffer))
            try:
                count = self._socket.recv_into(buffer[:count]) if count else 0
            except ConnectionResetError:
                raise self._broken_off() from None
        self._count(count)
        return count

    def fileno(self) -> int:
        """The socket, for reading by system calls: it ends with the body, and is reset where the body is cut."""
        if self._handed:
            raise io.UnsupportedOperation(
                "this body has no descriptor of its own: it is a part of the client's connection"
            )
        self._begin(blocking=True)
        return self._socket.fileno()

    def close(self) -> None:
        """Ends reading and closes the socket: a client that still sends is not kept waiting.

        A task that the handler has left reading ends, too. The loop would otherwise confuse the next descriptor of this
        number with the one that this task waits at, and never wake its owner.
        """
        if self._reader is not None:
            self._reader.get_loop().remove_reader(self._socket)
            self._reader.cancel()
        self._socket.close()

    def _begin(self, blocking: bool) -> bytes:
        """Sets the socket as it is read now; returns what was received and not read yet."""
        if self._awaited:
            self._take_connection()
        timeout = 0 if not blocking else _PATIENT if self._handed else None
        if self._socket.gettimeout() != timeout:
            self._socket.settimeout(timeout)
        first, self._first = self._first, b""
        return first

    def _take_connection(self) -> None:
        """Receives what the node had read, a byte that is none of the body's, and with it the connection."""
        parts = []
        found = array.array("i")
        while not found:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(_PIECE, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
            except ConnectionResetError:
                raise self._broken_off() from None
            if not data:
                raise self._broken_off()
            parts.append(data)
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    found.frombytes(content[:4])
        self._socket.close()
        self._socket = socket.socket(fileno=found[0])
        self._awaited = False
        self._first = b"".join(parts)[:-1]

    def _most(self, size: int) -> int:
        """Excludes the bytes that follow the body on its connection."""
        return min(size, self._length - self._got) if self._handed and self._length is not None else size

    def _took(self, piece: bytes) -> bytes:
        self._count(len(piece))
        return piece

    def _count(self, count: int) -> None:
        self._got += count
        if not count and self._length is not None and self._got < self._length:
            raise self._broken_off()

    def _broken_off(self) -> errors.IncompleteBody:
        of = "" if self._length is None else f" of {self._length}"
        return errors.IncompleteBody(f"the body ended after {self._got}{of} bytes")


class SocketFile(io.RawIOBase):
    """A body as a file. Closing it closes the socket."""

    def __init__(self, source: SocketStream) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with memoryview(buffer) as view, view.cast("B") as octets:
            return self._source.read_into(octets)

    def fileno(self) -> int:
        return self._source.fileno()

    def close(self) -> None:
        if not self.closed:
            self._source.close()
        super().close()


class StreamedBody(Body):
    """A body that is not here yet. Asking for it as a whole collects it."""

    __slots__ = ("_collected", "_file", "_source")

    def __init__(self, source: SocketStream) -> None:
        super().__init__(b"")
        self._source = source
        self._collected = False
        self._file: BinaryIO | None = None

    @property
    def bytes(self) -> bytes:
        """The whole body; waits for its end."""
        self._collect()
        return super().bytes

    @property
    def text(self) -> str:
        """The whole body as UTF-8 text; waits for its end."""
        self._collect()
        return super().text

    @property
    def json(self) -> object:
        """The whole body as a JSON value; waits for its end."""
        self._collect()
        return super().json

    def _collect(self) -> None:
        if not self._collected:
            self._raw = b"".join(self._source)
            self._collected = True

    async def gather(self) -> None:
        """Collects the body in an event loop."""
        if not self._collected:
            self._raw = b"".join([piece async for piece in self._source])
            self._collected = True

    def stream(self) -> BodyStream:
        """The body in pieces as they arrive; it can be walked once."""
        return super().stream() if self._collected else self._source

    def file(self) -> BinaryIO:
        """The body as a file, read as it arrives; always the same one."""
        if self._collected:
            return super().file()
        if self._file is None:
            self._file = io.BufferedReader(SocketFile(self._source), _PIECE)
        return self._file

    def close(self) -> None:
        """Closes the socket."""
        self._source.close()
