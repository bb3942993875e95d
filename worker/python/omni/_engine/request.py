"""Requests as they lie on the wire. The head is parsed when the handler first asks for something in it."""

from __future__ import annotations

import errno
import os
import socket

from omni import _json, errors
from omni._engine import wire
from omni.request import Body, BodyStream, Head, Headers, Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

_PIECE = 1 << 20


class WireRequest(Request):
    """A request over a frame's payload. With a descriptor, the body comes through that."""

    __slots__ = ("_descriptor", "_payload", "_received")

    def __init__(self, payload: _json.Buffer, received: float, descriptor: int | None = None) -> None:
        self._payload = payload
        self._received = received
        self._descriptor = descriptor
        self._known = None
        self._body = None

    def _head(self) -> Head:
        head = self._known
        if head is None:
            (length,) = wire.HEAD_LENGTH.unpack_from(self._payload)
            told = _json.decode(self._payload[4 : 4 + length])
            head = self._known = Head(
                told["id"],
                told["method"],
                Headers(told["headers"]),
                self._received + told["timeout_ms"] / 1000,
                told.get("session"),
                told.get("body_length"),
            )
        return head

    @property
    def body(self) -> Body:
        """The body."""
        body = self._body
        if body is None:
            if self._descriptor is None:
                (length,) = wire.HEAD_LENGTH.unpack_from(self._payload)
                body = Body(self._payload[4 + length :])
            else:
                body = StreamedBody(SocketStream(self._descriptor, self._head().body_length))
                self._descriptor = None  # the stream owns it now
            self._body = body
        return body

    def close(self) -> None:
        """Gives back the body's descriptor, read or not."""
        if self._descriptor is not None:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor = None
        elif isinstance(self._body, StreamedBody):
            self._body.close()


class SocketStream(BodyStream):
    """A body that comes through a socket, which ends with it; a body that broke off ends with a reset."""

    def __init__(self, descriptor: int, length: int | None) -> None:
        if descriptor < 0:
            raise OSError(errno.EMFILE, "the model has too many open files: there was no room for the request's body")
        self._socket = socket.socket(fileno=descriptor)
        self._length = length
        self._got = 0

    def __iter__(self) -> Iterator[bytes]:
        self._socket.setblocking(True)
        while True:
            try:
                piece = self._socket.recv(_PIECE)
            except ConnectionResetError:
                raise self._broken_off() from None
            if not piece:
                break
            self._got += len(piece)
            yield piece
        self._finish()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        import asyncio

        loop = asyncio.get_running_loop()
        self._socket.setblocking(False)
        while True:
            try:
                piece = await loop.sock_recv(self._socket, _PIECE)
            except ConnectionResetError:
                raise self._broken_off() from None
            if not piece:
                break
            self._got += len(piece)
            yield piece
        self._finish()

    def _finish(self) -> None:
        if self._length is not None and self._got < self._length:
            raise self._broken_off()

    def _broken_off(self) -> errors.IncompleteBody:
        of = "" if self._length is None else f" of {self._length}"
        return errors.IncompleteBody(f"the body ended after {self._got}{of} bytes")

    def close(self) -> None:
        self._socket.close()


class StreamedBody(Body):
    """A body that is not here yet. Asking for it as a whole collects it."""

    __slots__ = ("_collected", "_source")

    def __init__(self, source: SocketStream) -> None:
        super().__init__(b"")
        self._source = source
        self._collected = False

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

    def stream(self) -> BodyStream:
        """The body in pieces as they arrive; it can be walked once."""
        return super().stream() if self._collected else self._source

    def close(self) -> None:
        """Closes the socket."""
        self._source.close()
