"""HTTP/1.1 to the server, over a Unix socket or a port of the sandbox's own loopback.

A connection for each request: to close it is to cancel the request, none is found closed by a server that has lost
patience with it, and a server that keeps a thread for each open connection has no idle ones. Bounded: a head, a body
and a line of a stream have a most of bytes, and a stream that is not read is not received.
"""

from __future__ import annotations

import asyncio
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union

    Address = Union[str, int]
    """Path of a socket, or a port."""

MAX_HEAD = 64 * 1024
MAX_LINE = 1024 * 1024
"""Bytes of the longest line of a stream: a token with many alternatives takes some kilobytes."""
_PAUSE = 256 * 1024
"""Bytes received and not read, above which no more are received."""
_REST = 64 * 1024
_REST_TIME = 1.0
"""Bytes and seconds of a body that only its server wants read."""
_STREAM = b"text/event-stream"


class ServerError(Exception):
    """The server does not answer as HTTP has it, or is gone."""


class Exchange(asyncio.Protocol):
    """A request and its response, on a connection of its own."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        """Headers of the response; names in small letters."""
        self._transport: asyncio.Transport | None = None
        self._received = b""
        """Bytes whose meaning is not known yet."""
        self._line = b""
        """Beginning of an event's line."""
        self._parts: list[bytes] = []
        """Body that is not read yet."""
        self._unread = 0
        self._paused = False
        self._left: int | None = 0
        """Bytes of the body, or of its chunk, that are still to come; None: all until the end of the connection."""
        self._chunked = False
        self._ended = False
        self._error: ServerError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        if self._ended:
            return
        self._received = self._received + data if self._received else data
        try:
            if not self.status:
                self._take_head()
            if self.status:
                self._take_body()
        except ServerError as err:
            self._fail(err)
        if self._unread + len(self._received) > _PAUSE and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        if not self._ended and self.status and self._left is None:
            self._ended = True
        elif not self._ended and self._error is None:
            self._fail(ServerError(f"the server closed the connection before its answer was complete: {exc or 'end'}"))
        self._wake()

    def send(self, method: str, path: str, body: bytes | None) -> None:
        """Sends the request."""
        length = "" if body is None else f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{length}\r\n".encode()
        assert self._transport is not None
        self._transport.write(head + (body or b""))

    async def begun(self) -> None:
        """Waits for the head of the response."""
        while not self.status:
            await self._wait()

    async def read(self) -> bytes:
        """Bytes of the body, as they come; none at its end. Raises `ServerError`."""
        while not self._parts:
            if self._ended:
                return b""
            await self._wait()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._unread = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    async def whole(self, most: int) -> bytes:
        """The whole body, of at most so many bytes. Raises `ServerError`."""
        parts: list[bytes] = []
        size = 0
        while True:
            data = await self.read()
            if not data:
                return b"".join(parts)
            size += len(data)
            if size > most:
                raise ServerError(f"the server's answer has more than {most} bytes")
            parts.append(data)

    async def rest(self) -> bytes:
        """The body as far as it comes soon, within a bound, and the end of the connection: a server that is hung up on
        while it writes may take that for a fault."""
        parts: list[bytes] = []

        async def collect() -> None:
            size = 0
            while size < _REST and (data := await self.read()):
                size += len(data)
                parts.append(data)

        try:
            await asyncio.wait_for(collect(), _REST_TIME)
        except (ServerError, asyncio.TimeoutError):
            pass  # what has come is all that matters
        finally:
            self.close()
        return b"".join(parts)

    @property
    def media(self) -> str:
        """The type of the body, as the server has it."""
        return self.headers.get(b"content-type", b"").decode("latin-1")

    @property
    def is_stream(self) -> bool:
        """True if the body is a stream of events."""
        return self.headers.get(b"content-type", b"").startswith(_STREAM)

    def events_of(self, data: bytes) -> list[bytes]:
        """The data of the events that are whole with these bytes of the body."""
        lines = (self._line + data).split(b"\n")
        self._line = lines.pop()
        if len(self._line) > MAX_LINE:
            raise ServerError(f"an event of the server has more than {MAX_LINE} bytes")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]

    def close(self) -> None:
        """Closes the connection, whatever is still to come: the server gives up the request."""
        self._ended = True
        if self._transport is not None:
            self._transport.abort()

    def _take_head(self) -> None:
        while not self.status:
            head, end, rest = self._received.partition(b"\r\n\r\n")
            if not end:
                if len(head) > MAX_HEAD:
                    raise ServerError(f"the head of the server's answer has more than {MAX_HEAD} bytes")
                return
            self._received = rest
            first, *lines = head.split(b"\r\n")
            version, _, status = first.partition(b" ")
            if not version.startswith(b"HTTP/1.") or not status[:3].isdigit():
                raise ServerError("the server's answer is not HTTP/1.1")
            if status[:1] == b"1":
                continue  # an interim response
            self.status = int(status[:3])
            for line in lines:
                name, _, value = line.partition(b":")
                self.headers[name.strip().lower()] = value.strip()
        self._chunked = self.headers.get(b"transfer-encoding", b"").lower().endswith(b"chunked")
        length = self.headers.get(b"content-length")
        if not self._chunked:
            self._left = None if length is None else _number(length, 10)
            self._ended = self._left == 0

    def _take_body(self) -> None:
        if self._chunked:
            self._take_chunks()
        elif self._left is None:
            self._put(self._received)
            self._received = b""
        else:
            data = self._received[: self._left]
            self._left -= len(data)
            self._received = b""
            self._put(data)
            self._ended = self._left == 0

    def _take_chunks(self) -> None:
        received, at, left = self._received, 0, self._left
        assert left is not None
        while True:
            if left == 0:
                end = received.find(b"\r\n", at)
                if end < 0:
                    if len(received) - at > MAX_HEAD:
                        raise ServerError("a chunk of the server's answer has no length")
                    break
                left = _number(received[at:end].partition(b";")[0], 16) + 2  # with the line end behind it
                at = end + 2
                if left == 2:
                    self._ended = True  # trailers mean nothing here
                    break
            data = received[at : at + left]
            if not data:
                break
            at += len(data)
            left -= len(data)
            self._put(data if left >= 2 else data[: len(data) - 2 + left])
        self._left = left
        self._received = b"" if self._ended else received[at:]

    def _put(self, data: bytes) -> None:
        if data:
            self._parts.append(data)
            self._unread += len(data)

    def _fail(self, error: ServerError) -> None:
        self._error = error
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _number(text: bytes, base: int) -> int:
    digits = text.strip()
    if not digits or len(digits) > 16 or not digits.isalnum():
        raise ServerError("a length in the server's answer is no number")
    try:
        return int(digits, base)
    except ValueError:
        raise ServerError("a length in the server's answer is no number") from None


async def _connected(path: str) -> socket.socket:
    """A connection to a Unix socket. A full backlog is waited for: the kernel says EAGAIN then, which the loop would
    take for a connection under way."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        wait = 0.001
        while True:
            try:
                sock.connect(path)
            except BlockingIOError:
                await asyncio.sleep(wait)
                wait = min(wait * 2, 0.05)
            else:
                return sock
    except BaseException:
        sock.close()
        raise


async def ask(address: Address, method: str, path: str, body: bytes | None = None) -> Exchange:
    """Sends a request, and waits for the head of its response. Raises `ServerError`; `OSError` if nothing listens."""
    loop = asyncio.get_running_loop()
    if isinstance(address, int):
        _, exchange = await loop.create_connection(Exchange, "127.0.0.1", address)
    else:
        _, exchange = await loop.create_unix_connection(Exchange, sock=await _connected(address))
    try:
        exchange.send(method, path, body)
        await exchange.begun()
    except BaseException:
        exchange.close()
        raise
    return exchange


async def get(address: Address, path: str, most: int) -> tuple[int, bytes]:
    """The status of a response, and with status 200 its whole body, of at most so many bytes. Raises as `ask` does."""
    exchange = await ask(address, "GET", path)
    if exchange.status != 200:
        await exchange.rest()
        return exchange.status, b""
    try:
        return exchange.status, await exchange.whole(most)
    finally:
        exchange.close()
