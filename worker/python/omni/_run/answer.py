"""The answer to a request of the local run, as a node writes it: status, headers, envelope, events, failures.

The main thread writes the handler's result; the thread of the connection ends the answer at the deadline, whatever the
handler does. Invariants: writes are whole, and nothing follows the last one.
"""

from __future__ import annotations

import socket
import threading
import time

from omni import _json
from omni._engine import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler
    from typing import Any

FAILED = "the model failed on this request"
LATE = "the request's deadline passed"
_NO_CONTENT = (204, 304)
_LAST_WRITE = 0.5
"""Seconds that a write already begun has at the deadline."""


class Gone(Exception):
    """The answer cannot be delivered any more. Without a text: it has been given in another way."""


def code_of(status: int) -> int:
    """The error code of the Workers AI API that a node gives to a handler's status."""
    return {413: 3006, 429: 3040, 504: 3007}.get(status, 3043 if status >= 500 else 5004)


class Form:
    """The form of failures in the Workers AI API."""

    def failure(self, status: int, code: int, message: str, parameter: str | None, name: str | None) -> bytes:
        """The body of an answer. `parameter` and `name` are for other APIs."""
        errors = [{"code": code, "message": message}]
        return _json.encode({"result": None, "success": False, "errors": errors, "messages": []})

    def broken(self, status: int, message: str) -> bytes:
        """The event of a stream that failed."""
        return _json.encode({"error": {"message": message}})


class Answer:
    """The answer to a request. Its methods raise `Gone` once it cannot be delivered any more."""

    def __init__(self, connection: BaseHTTPRequestHandler, request: str) -> None:
        self._connection = connection
        self.request = request
        self._lock = threading.Lock()
        self.opened = False
        """True once a stream has begun."""
        self._events = False
        self._makers: set[bool] = set()
        """Origins of the events so far: True for the model's own, False for events formatted here."""
        self.is_over = False
        """True once its last byte was written."""
        self.begun = False
        """True once the handler was called."""
        self.done = threading.Event()
        """The handler has ended."""
        self.form = Form()
        """The form of failures."""

    def whole(self, frame: bytes) -> None:
        """An answer in one frame."""
        _, kind, flags, status, _ = wire.HEADER.unpack_from(frame)
        payload, head = frame[wire.HEADER.size :], {}
        if kind == wire.ERROR:
            told = _json.decode(payload)
            self.failure(status, code_of(status), told["message"], told.get("parameter"))
            return
        if flags & wire.HEAD:
            (length,) = wire.HEAD_LENGTH.unpack_from(payload)
            head, payload = _json.decode(payload[4 : 4 + length]), payload[4 + length :]
        default = "application/octet-stream"
        if flags & wire.CONTENT == wire.JSON:
            failed = [{"code": code_of(status), "message": f"the model answered with status {status}"}]
            errors = _json.encode(failed if status >= 400 else [])
            success = b"false" if status >= 400 else b"true"
            payload = b'{"result":%s,"success":%s,"errors":%s,"messages":[]}' % (payload, success, errors)
            default = "application/json"
        self.document(status, head.get("media_type", default), payload, head.get("headers", []))

    def document(self, status: int, media_type: str, payload: bytes, headers: Any = ()) -> None:
        """An answer as it is."""
        with self._lock:
            self._last()
            self._begin(status, media_type, headers, len(payload))
            self._write(payload)

    def json(self, value: object) -> None:
        """An answer in JSON, without an envelope."""
        self.document(200, "application/json", _json.encode(value))

    def failure(
        self, status: int, code: int, message: str, parameter: str | None = None, name: str | None = None
    ) -> None:
        """A failure instead of an answer. `name`: its code in the OpenAI API, where that has one of its own."""
        with self._lock:
            self._fail(status, code, message, parameter, name)

    def open(self, frame: bytes) -> None:
        """The beginning of a stream."""
        _, _, content, status, _ = wire.HEADER.unpack_from(frame)
        head = _json.decode(frame[wire.HEADER.size :]) if len(frame) > wire.HEADER.size else {}
        default = "text/event-stream" if content == wire.EVENTS else "application/octet-stream"
        with self._lock:
            self._go_on()
            self.opened, self._events = True, content == wire.EVENTS
            self._begin(status, head.get("media_type", default), head.get("headers", []), None)

    def open_events(self) -> None:
        """The beginning of a stream of events."""
        self.open(wire.frame(wire.STREAM, wire.EVENTS, 200, 0))

    def event(self, payload: bytes) -> None:
        """Writes an event that has this JSON value."""
        self.piece(wire.JSON, payload)

    def piece(self, flags: int, payload: bytes | memoryview) -> None:
        """Writes a piece of a stream."""
        data = bytes(payload)
        if flags == wire.TEXT:
            data = _json.encode({"response": data.decode()})
        if flags != wire.BYTES:
            data = b"data: " + data + b"\n\n"
        with self._lock:
            self._go_on()
            self._makers.add(flags == wire.BYTES)
            if data:
                self._chunk(data)

    def end(self) -> None:
        """The end of a stream."""
        with self._lock:
            self._last()
            if self._events and self._makers != {True}:
                self._chunk(b"data: [DONE]\n\n")
            self._write(b"0\r\n\r\n")

    def broken(self, status: int, message: str) -> None:
        """The end of a stream that failed: one event; a stream of bytes is cut."""
        with self._lock:
            self._break(status, message)

    def end_at(self, deadline: float, grace: float) -> bool:
        """Waits for the handler, and ends the answer at the deadline. False when the handler goes on regardless."""
        if self.done.wait(max(0.0, deadline - time.monotonic())):
            return True
        if not self._lock.acquire(timeout=_LAST_WRITE):
            self._connection.connection.shutdown(socket.SHUT_RDWR)  # the client reads nothing
            return self.done.wait(grace)
        try:
            if self.opened:
                self._break(504, LATE)
            else:
                self._fail(504, code_of(504), LATE)
        except Gone:
            pass
        finally:
            self._lock.release()
        return not self.begun or self.done.wait(grace)

    def _go_on(self) -> None:
        if self.is_over:
            raise Gone

    def _last(self) -> None:
        self._go_on()
        self.is_over = True

    def _fail(
        self, status: int, code: int, message: str, parameter: str | None = None, name: str | None = None
    ) -> None:
        self._last()
        payload = self.form.failure(status, code, message, parameter, name)
        headers = [["x-should-retry", "false"]] if status >= 500 else []
        allowed = message.rpartition(" ")[2]
        headers += {405: [["allow", allowed]], 415: [["accept-encoding", "identity"]]}.get(status, [])
        self._begin(status, "application/json", headers, len(payload))
        self._write(payload)

    def _break(self, status: int, message: str) -> None:
        self._last()
        self._connection.close_connection = True
        try:
            if self._events:
                event = b"data: %s\n\n" % self.form.broken(status, message)
                self._chunk(b"\n\n" + event if True in self._makers else event)  # its last event may have no end
                self._write(b"0\r\n\r\n")
        except Gone:
            pass  # the failure is in the log

    def _chunk(self, data: bytes) -> None:
        self._write(b"%x\r\n%s\r\n" % (len(data), data))

    def _begin(self, status: int, media_type: str, headers: Any, length: int | None) -> None:
        connection = self._connection
        connection.send_response(status)
        connection.send_header("content-type", media_type)
        connection.send_header("x-request-id", self.request)
        for name, value in headers:
            connection.send_header(name, value.encode().decode("latin-1"))
        if length is None:
            connection.send_header("transfer-encoding", "chunked")
        elif status not in _NO_CONTENT:
            connection.send_header("content-length", str(length))
        if connection.close_connection:
            connection.send_header("connection", "close")
        try:
            connection.end_headers()
        except OSError as err:
            raise Gone(f"the client hung up: {err}") from None

    def _write(self, data: bytes) -> None:
        try:
            if self._connection.command != "HEAD":
                self._connection.wfile.write(data)
        except OSError as err:
            self._connection.close_connection = True
            raise Gone(f"the client hung up: {err}") from None
