"""HTTP of the local run: requests are read by threads, and answered by the main thread, as a node answers them."""

from __future__ import annotations

import queue
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from omni._run import admission, native_task, native_text
from omni._run.answer import Answer, Gone
from omni._run.job import Head
from omni._run.native import Run
from omni._run.native_text import NativeEncoder
from omni._run.openai import failure, routes
from omni._run.openai.routes import TEXT, OpenAi
from omni._run.openai.text import Text
from omni._run.refusal import Refused
from omni._run.template import REASONING, ChatTemplate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from omni._run.job import Job
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


class Server(ThreadingHTTPServer):
    """Takes requests for one model. `jobs` has those that are to be answered; None ends the local run."""

    daemon_threads = True

    def __init__(self, directory: Path, manifest: Manifest, port: int, inherited: int | None) -> None:
        super().__init__(("127.0.0.1", port), Handler, bind_and_activate=inherited is None)
        if inherited is not None:
            self.socket.close()
            self.socket = type(self.socket)(fileno=inherited)
            self.server_address = self.socket.getsockname()
        self.model = directory.name
        self.manifest = manifest
        self._template = ChatTemplate(directory)
        self.openai = OpenAi(self.model, manifest, self._template)
        self.jobs: queue.SimpleQueue[tuple[Job, Answer] | None] = queue.SimpleQueue()
        self.on_stuck: Callable[[], None] = lambda: None
        """Called when a handler goes on after its cancellation for longer than the manifest allows."""
        self.is_loaded = True
        """False where the model could not be loaded: every request is refused."""
        self._accepts = False

    def notes(self) -> list[str]:
        """Differences to a node that requests to this model show."""
        if self.manifest.kind != TEXT:
            return []
        notes = [] if self.manifest.renders_itself else list(self._template.notes())
        return list(dict.fromkeys([*notes, *([REASONING] if self.manifest.separates_reasoning else [])]))

    def accept(self) -> None:
        """Accepts connections from now on, in a thread."""
        self._accepts = True
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def run(self, head: Head, body: bytes) -> Job:
        """Reads a request of the run API. Raises `Refused`."""
        if self.manifest.kind in native_task.KINDS and self.manifest.is_read:
            return native_task.KINDS[self.manifest.kind](head, body)
        if self.manifest.kind != TEXT or not self.manifest.is_read:
            return Run(head, body)
        text = Text(head, native_text.read(self.model, body), NativeEncoder, self.manifest, self._template)
        text.check()
        return text

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Reports what a connection's thread raised; a client that hangs up is no error."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def refuse(self) -> None:
        """Accepts no connection any more: they wait in the listening socket."""
        if self._accepts:
            self.shutdown()


class Handler(BaseHTTPRequestHandler):
    """A connection of a client."""

    protocol_version = "HTTP/1.1"
    server: Server

    def _method(self) -> None:
        begun = time.monotonic()
        given = self.headers.get("x-request-id", "")
        usable = 1 <= len(given) <= 128 and all("!" <= char <= "~" for char in given)
        answer = Answer(self, given if usable else str(uuid.uuid4()))
        route = self._route()
        if route is not None:
            answer.form = failure.Form()
        try:
            admission.check(self.headers, self.command, self.request_version)
            if not self.server.is_loaded:
                self._body()
                raise Refused(503, 3040, "the model cannot start: the terminal of the local run says why")
            job = self._job(route, answer, begun)
        except Refused as refused:
            self.close_connection = True
            try:
                answer.failure(refused.status, refused.code, refused.message, refused.parameter, refused.name)
            except Gone:
                pass
            return
        except Gone:
            return
        except (OSError, ValueError):
            self.close_connection = True
            return
        if job is None:
            return
        self.server.jobs.put((job, answer))
        if not answer.end_at(job.head.deadline, self.server.manifest.grace):
            self.server.on_stuck()

    do_GET = do_HEAD = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_POST = _method

    def log_message(self, format: str, *arguments: object) -> None:
        """Requests are not listed: what a handler prints is the log."""

    def _path(self) -> list[str]:
        path = urlsplit(self.path).path.split("/")
        if path[1:3] == ["client", "v4"] and path[3:4] == ["accounts"]:
            path = ["", *path[5:]]
            if path[1:3] == ["ai", "v1"]:
                del path[1]
        return path

    def _route(self) -> str | None:
        """The route of the OpenAI API; None for any other path."""
        path = self._path()
        return "/".join(path[2:]) if path[1:2] == ["v1"] else None

    def _job(self, route: str | None, answer: Answer, begun: float) -> Job | None:
        """Reads the request; None if it is answered already."""
        if route is None:
            self._check_run()
            return self.server.run(self._head(answer.request, begun), self._body())
        self.server.openai.check(route, self.command)
        if self.server.openai.models(route, answer):
            return None
        if not routes.is_form(route):
            admission.check_json(self.headers)
        admission.check_encoding(self.headers)
        return self.server.openai.read(route, self._head(answer.request, begun), self._body(), self.headers)

    def _check_run(self) -> None:
        path = self._path()
        if path[1:3] != ["ai", "run"] or len(path) < 4:
            raise Refused(404, 7000, "no such route")
        if self.command != "POST":
            raise Refused(405, 7001, "this route takes POST")
        if unquote("/".join(path[3:])).rpartition("/")[2] != self.server.model:
            raise Refused(404, 5007, "no such model")
        admission.check_encoding(self.headers)

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

    def _number(self, name: str) -> float | None:
        """The whole number in a header."""
        told = self.headers.get(name)
        if told is None:
            return None
        digits = told.strip(" \t")
        if not (digits.isascii() and digits.isdigit()):
            raise Refused(400, 5004, f"the header `{name}` has to be a whole number, such as 1")
        return float(digits)

    def _head(self, id: str, begun: float) -> Head:
        manifest, headers = self.server.manifest, self.headers
        asked = self._number("x-omni-timeout-ms")
        self._number("x-omni-priority")  # there is one request at a time
        timeout = manifest.timeout if asked is None else min(manifest.timeout, max(asked, 1) / 1000)
        kept = [pair for pair in headers.items() if pair[0].lower() not in (*_CREDENTIALS, *_HOPS)]
        return Head(id, kept, headers.get("x-session-affinity"), begun + timeout)
