"""HTTP of the local run: requests are read by threads, and answered by the main thread, as a node answers them."""

from __future__ import annotations

import queue
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from omni import _json
from omni._engine import wire
from omni._run.handling import Gone, code_of
from omni.request import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from omni._run.manifest import Manifest

_CREDENTIALS = ("authorization", "cookie", "proxy-authorization", "x-auth-key")
_HOPS = (
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
)
_LINE = 64 * 1024


class Refused(Exception):
    """A request that reaches no handler: status, code and message of the answer."""


class Server(ThreadingHTTPServer):
    """Takes requests for one model. `jobs` has those that are to be answered; None ends the local run."""

    daemon_threads = True

    def __init__(self, model: str, manifest: Manifest, port: int, inherited: int | None) -> None:
        super().__init__(("127.0.0.1", port), Handler, bind_and_activate=inherited is None)
        if inherited is not None:
            self.socket.close()
            self.socket = type(self.socket)(fileno=inherited)
            self.server_address = self.socket.getsockname()
        self.model = model
        self.manifest = manifest
        self.jobs: queue.SimpleQueue[tuple[Request, Handler] | None] = queue.SimpleQueue()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Server
    _events = False
    _own = None
    """Whether all events so far were the model's own; None before the first."""

    def _method(self) -> None:
        begun = time.monotonic()
        try:
            self._check()
            body = self._body()
        except Refused as refused:
            self.close_connection = True
            try:
                self.failure(*refused.args)
            except Gone:
                pass
            return
        except (OSError, ValueError):
            self.close_connection = True
            return
        self._events, self._own = False, None
        self._answered = threading.Event()
        self.server.jobs.put((self._request(body, begun), self))
        self._answered.wait()

    do_GET = do_HEAD = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_POST = _method

    def done(self) -> None:
        """The main thread has answered."""
        self._answered.set()

    def log_message(self, format: str, *arguments: object) -> None:
        """Requests are not listed: what a handler prints is the log."""

    def _check(self) -> None:
        path = urlsplit(self.path).path.split("/")
        if path[1:3] == ["client", "v4"] and path[3:4] == ["accounts"]:
            path = ["", *path[5:]]
        if path[1:3] != ["ai", "run"] or len(path) < 4:
            raise Refused(404, 7000, "no such route")
        if self.command != "POST":
            raise Refused(405, 7001, "this route takes POST")
        if unquote("/".join(path[3:])).rpartition("/")[2] != self.server.model:
            raise Refused(404, 5007, "no such model")

    def _body(self) -> bytes:
        limit = self.server.manifest.body
        large = Refused(413, 3006, f"the request's body is larger than this model's limit of {limit} bytes")
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            parts, size = [], 0
            while True:
                length = int(self.rfile.readline(_LINE).split(b";")[0], 16)
                size += length
                if size > limit:
                    raise large
                if length == 0:
                    break
                parts.append(self._exactly(length))
                if self.rfile.readline(_LINE).strip():
                    raise ValueError("a chunk is longer than it says")
            while self.rfile.readline(_LINE).strip():
                pass  # trailers
            return b"".join(parts)
        length = int(self.headers.get("content-length", "0"))
        if length > limit:
            raise large
        return self._exactly(length)

    def _exactly(self, length: int) -> bytes:
        data = self.rfile.read(length)
        if len(data) < length:
            raise ValueError("the body broke off")
        return data

    def _request(self, body: bytes, begun: float) -> Request:
        manifest, headers = self.server.manifest, self.headers
        told = headers.get("x-omni-timeout-ms", "")
        timeout = min(manifest.timeout, int(told) / 1000) if told.isdigit() and int(told) else manifest.timeout
        given = headers.get("x-request-id", "")
        usable = 1 <= len(given) <= 128 and all("!" <= char <= "~" for char in given)
        return Request(
            body=body,
            headers=[pair for pair in headers.items() if pair[0].lower() not in (*_CREDENTIALS, *_HOPS)],
            method="POST",
            id=given if usable else str(uuid.uuid4()),
            session=headers.get("x-session-affinity"),
            deadline=begun + timeout,
        )

    def whole(self, frame: bytes) -> None:
        """An answer in one frame."""
        _, kind, flags, status, _ = wire.HEADER.unpack_from(frame)
        payload, head = frame[wire.HEADER.size :], {}
        if kind == wire.ERROR:
            self.failure(status, code_of(status), _json.decode(payload)["message"])
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
        self._begin(status, head.get("media_type", default), head.get("headers", []), len(payload))
        self._write(payload)

    def failure(self, status: int, code: int, message: str) -> None:
        """A failure instead of an answer."""
        errors = [{"code": code, "message": message}]
        payload = _json.encode({"result": None, "success": False, "errors": errors, "messages": []})
        headers = [["allow", "POST"]] if status == 405 else [["x-should-retry", "false"]] if status >= 500 else []
        self._begin(status, "application/json", headers, len(payload))
        self._write(payload)

    def open(self, frame: bytes) -> None:
        """The beginning of a stream."""
        _, _, content, status, _ = wire.HEADER.unpack_from(frame)
        head = _json.decode(frame[wire.HEADER.size :]) if len(frame) > wire.HEADER.size else {}
        self._events = content == wire.EVENTS
        default = "text/event-stream" if self._events else "application/octet-stream"
        self._begin(status, head.get("media_type", default), head.get("headers", []), None)

    def piece(self, flags: int, payload: bytes | memoryview) -> None:
        """One piece of a stream."""
        data = bytes(payload)
        self._own = flags == wire.BYTES and self._own is not False
        if flags == wire.TEXT:
            data = _json.encode({"response": data.decode()})
        if flags != wire.BYTES:
            data = b"data: " + data + b"\n\n"
        if data:
            self._chunk(data)

    def end(self) -> None:
        """The end of a stream."""
        if self._events and not self._own:
            self._chunk(b"data: [DONE]\n\n")
        self._write(b"0\r\n\r\n")

    def broken(self, message: str) -> None:
        """The end of a stream that failed: one event; a stream of bytes is cut."""
        self.close_connection = True
        try:
            if self._events:
                event = b"data: " + _json.encode({"error": {"message": message}}) + b"\n\n"
                self._chunk(b"\n\n" + event if self._own is not None else event)
                self._write(b"0\r\n\r\n")
        except Gone:
            pass  # the failure is in the log

    def _chunk(self, data: bytes) -> None:
        self._write(b"%x\r\n%s\r\n" % (len(data), data))

    def _begin(self, status: int, media_type: str, headers: Any, length: int | None) -> None:
        self.send_response(status)
        self.send_header("content-type", media_type)
        for name, value in headers:
            self.send_header(name, value.encode().decode("latin-1"))
        if length is None:
            self.send_header("transfer-encoding", "chunked")
        else:
            self.send_header("content-length", str(length))
        if self.close_connection:
            self.send_header("connection", "close")
        try:
            self.end_headers()
        except OSError as err:
            raise Gone(f"the client hung up: {err}") from None

    def _write(self, data: bytes) -> None:
        try:
            if self.command != "HEAD":
                self.wfile.write(data)
        except OSError as err:
            self.close_connection = True
            raise Gone(f"the client hung up: {err}") from None
