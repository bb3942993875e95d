"""One model over HTTP on a laptop: `python -m omni run DIR`.

The answers are those of a node (envelope, bytes, server-sent events), the isolation, limits, queues and cancellation
are not: this is to try a handler, never to serve one. Handlers run one at a time.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import AsyncGeneratorType

from omni import _json, _log
from omni._engine import wire
from omni._engine.answer import Stream, whole
from omni._engine.model import LoadError, Model
from omni.context import Context, request_now
from omni.errors import HTTPError
from omni.request import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

_MAX_BODY = 1 << 30
_CODES = {400: 5004, 404: 5007, 413: 3006, 429: 3040, 500: 3043, 503: 3040, 504: 3007}


def serve(directory: Path, port: int) -> int:
    """Serves until Ctrl-C. Returns the exit code."""
    boot: dict[str, Any] = {
        "model": directory.name,
        "instance": "laptop",
        "model_dir": str(directory),
        "cache_dir": "",
        "device": "cpu",
        "concurrency": 1,
    }
    boot["module"], boot["function"] = _entrypoint(directory)
    try:
        model = Model(boot)
    except LoadError as err:
        print(err.message, file=sys.stderr)
        return 1
    server = ThreadingHTTPServer(("127.0.0.1", port), _handler_class(model))
    print(f"{directory.name} is at http://127.0.0.1:{server.server_address[1]}/ai/run/{directory.name}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
        model.teardown()
    return 0


def _entrypoint(directory: Path) -> tuple[str, str]:
    manifest = directory / "omni.toml"
    named = "model:handle_request"
    if manifest.exists():
        try:
            import tomllib
        except ImportError:
            print("omni.toml is not read before Python 3.11: the entry point is model:handle_request", file=sys.stderr)
        else:
            named = tomllib.loads(manifest.read_text()).get("model", {}).get("entrypoint", named)
    module, _, function = named.partition(":")
    return module, function


def _handler_class(model: Model) -> type[BaseHTTPRequestHandler]:
    one_at_a_time = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        _events = False

        def do_POST(self) -> None:
            length = self.headers.get("content-length", "")
            if not length.isdigit() or int(length) > _MAX_BODY:
                self.close_connection = True
                self._failure(400, "a body with a content-length of at most 1 GiB is needed")
                return
            body = self.rfile.read(int(length))
            request_id = self.headers.get("x-request-id") or str(uuid.uuid4())
            request = Request(body=body, headers=self.headers.items(), method="POST", id=request_id)
            with one_at_a_time:
                request_now.set(request)
                self._answer(request, Context(model.instance, request))

        def _answer(self, request: Request, context: Context) -> None:
            started = False
            try:
                result = model.handler(request, context)
                if hasattr(result, "__await__"):
                    result = model.loop().run_until_complete(result)
                last = whole(0, result)
                if isinstance(last, bytes):
                    self._whole(last)
                    return
                for opening, flags, payload in _frames(model, last):
                    if opening:
                        started = True
                        self._open(opening)
                    if payload is not None:
                        self._piece(flags, payload)
                if self._events:
                    self._chunk(b"data: [DONE]\n\n")
                self.wfile.write(b"0\r\n\r\n")
            except OSError as err:
                _log.report("INFO", f"the client hung up: {err}")
                self.close_connection = True
            except BaseException as err:
                if isinstance(err, (KeyboardInterrupt, asyncio.CancelledError)):
                    raise
                self._raised(err, started)

        def _raised(self, error: BaseException, started: bool) -> None:
            status, message = 500, "the model failed"
            if isinstance(error, HTTPError):
                status, message = error.status, error.message
            else:
                _log.report("ERROR", "the handler raised\n" + _log.traceback_of(error, skip=1))
            if started:
                self._piece(wire.JSON, _json.encode({"error": {"message": message}}))
                self.close_connection = True
            else:
                self._failure(status, message)

        def _whole(self, frame: bytes) -> None:
            _, kind, flags, status, _ = wire.HEADER.unpack_from(frame)
            payload, head = frame[wire.HEADER.size :], {}
            if kind == wire.ERROR:
                self._failure(status, _json.decode(payload)["message"])
                return
            if flags & wire.HEAD:
                (length,) = wire.HEAD_LENGTH.unpack_from(payload)
                head, payload = _json.decode(payload[4 : 4 + length]), payload[4 + length :]
            media_type = head.get("media_type", "application/octet-stream")
            if flags & wire.CONTENT == wire.JSON:
                payload = b'{"result":' + payload + b',"success":true,"errors":[],"messages":[]}'
                media_type = "application/json"
            self._begin(status, media_type, head.get("headers", []), len(payload))
            self.wfile.write(payload)

        def _failure(self, status: int, message: str) -> None:
            errors = [{"code": _CODES.get(status, 3043 if status >= 500 else 5004), "message": message}]
            payload = _json.encode({"result": None, "success": False, "errors": errors, "messages": []})
            self._begin(status, "application/json", [], len(payload))
            self.wfile.write(payload)

        def _open(self, frame: bytes) -> None:
            _, _, content, status, _ = wire.HEADER.unpack_from(frame)
            head = _json.decode(frame[wire.HEADER.size :]) if len(frame) > wire.HEADER.size else {}
            default = "text/event-stream" if content == wire.EVENTS else "application/octet-stream"
            self._begin(status, head.get("media_type", default), head.get("headers", []), None)
            self._events = content == wire.EVENTS

        def _piece(self, flags: int, payload: bytes | memoryview) -> None:
            data = bytes(payload)
            if flags == wire.TEXT:
                data = _json.encode({"response": data.decode()})
            if flags != wire.BYTES:
                data = b"data: " + data + b"\n\n"
            if data:
                self._chunk(data)

        def _chunk(self, data: bytes) -> None:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

        def _begin(self, status: int, media_type: str, headers: list[list[str]], length: int | None) -> None:
            self.send_response(status)
            self.send_header("content-type", media_type)
            for name, value in headers:
                self.send_header(name, value)
            if length is None:
                self.send_header("transfer-encoding", "chunked")
            else:
                self.send_header("content-length", str(length))
            self.end_headers()

    return Handler


def _frames(model: Model, stream: Stream) -> Iterator[tuple[bytes, int, bytes | memoryview | None]]:
    """Opening, flags and payload of each chunk; the opening is empty after the first."""
    for item in _items(model, stream.chunks):
        flags, payload = stream.encode(item)
        yield stream.opening(), flags, payload
    ending = stream.opening()
    if ending:
        yield ending, 0, None


def _items(model: Model, chunks: Any) -> Iterator[object]:
    if not hasattr(chunks, "__aiter__"):
        yield from chunks
        return
    walk = chunks.__aiter__()
    try:
        while True:
            try:
                yield model.loop().run_until_complete(walk.__anext__())
            except StopAsyncIteration:
                return
    finally:
        if isinstance(walk, AsyncGeneratorType):
            model.loop().run_until_complete(walk.aclose())
