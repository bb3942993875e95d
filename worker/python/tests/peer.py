"""The other side of an engine: a scheduler and a worker in a few lines, with frames encoded by hand from the contract
(`protocol/engine/src/frame.rs`, `engine.rs`). Deliberately knows nothing of `omni._engine.wire`.
"""

from __future__ import annotations

import array
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any, NamedTuple

ENGINE = Path(__file__).parent.parent / "omni" / "_engine" / "main.py"
HEADER = struct.Struct("<IBBHQ")
REQUEST, CREDIT, CANCEL, CHECK, BATCH, RESPONSE, STREAM, CHUNK, END, ERROR, USAGE, HEALTH, METRICS = (
    1,
    2,
    3,
    4,
    5,
    16,
    17,
    18,
    19,
    20,
    21,
    22,
    23,
)
JSON, BYTES, TEXT, EVENTS, EVENT, HEAD, BODY_STREAM = 0, 1, 2, 3, 4, 0x10, 0x20
HANDLER, RAISED, UNSERIALISABLE, CANCELLED = 0, 1, 2, 3
CLIENT_GONE, DEADLINE, SHUTDOWN = 1, 2, 3
ISOLATE = 1
LIMIT = 20.0  # seconds until a test that hangs fails


class Frame(NamedTuple):
    kind: int
    flags: int
    code: int
    number: int
    payload: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.payload)

    def split(self) -> tuple[dict[str, Any], bytes]:
        """Head and the rest of a response with a head."""
        (length,) = struct.unpack_from("<I", self.payload)
        return json.loads(self.payload[4 : 4 + length]), self.payload[4 + length :]


def frame(kind: int, number: int, payload: bytes = b"", flags: int = 0, code: int = 0) -> bytes:
    return HEADER.pack(len(payload), kind, flags, code, number) + payload


def request(number: int, body: Any = b"", flags: int = 0, **head: Any) -> bytes:
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    kind = {"kind": head.pop("kind")} if "kind" in head else {}
    told = {**kind, "id": f"r{number}", "method": "POST", "timeout_ms": 60000, "headers": [], **head}
    text = json.dumps(told, separators=(",", ":")).encode()
    return frame(REQUEST, number, struct.pack("<I", len(text)) + text + body, flags)


class Link:
    """The scheduler's ends of one data connection."""

    def __init__(self, data: socket.socket, cancel: socket.socket) -> None:
        self.data, self._cancel, self._buffer = data, cancel, b""
        self.metrics: list[Any] = []
        """Reports of metrics, which may come at any time."""
        data.settimeout(LIMIT)

    def send(self, data: bytes, fd: int | None = None) -> None:
        if fd is not None:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
            sent = self.data.sendmsg([data], rights)
            data = data[sent:]
        self.data.sendall(data)

    def ask(self, number: int, body: Any = b"", flags: int = 0, **head: Any) -> None:
        self.send(request(number, body, flags, **head))

    def batch(self, number: int, members: dict[int, Any], isolates: bool = False, **head: Any) -> None:
        """A batch with the bodies of its members."""
        frames = [frame(BATCH, number, struct.pack(f"<{len(members)}Q", *members), flags=ISOLATE if isolates else 0)]
        frames += [request(member, body, **head) for member, body in members.items()]
        self.send(b"".join(frames))

    def gather(self, *numbers: int) -> dict[int, list[Frame]]:
        """All frames until each of these requests has its last one. The credit of large chunks is given back."""
        found: dict[int, list[Frame]] = {number: [] for number in numbers}
        left = set(numbers)
        while left:
            got = self.read()
            assert got.number in left, f"{got} after the last frame of its request"
            found[got.number].append(got)
            if len(got.payload) > 16 * 1024 and got.kind == CHUNK:
                self.credit(got.number, len(got.payload) + HEADER.size)
            if got.kind in (RESPONSE, END, ERROR):
                left.remove(got.number)
        return found

    def upload(self, number: int, **head: Any) -> socket.socket:
        """A request whose body comes through the socket that is returned."""
        ours, theirs = socket.socketpair()
        self.send(request(number, flags=BODY_STREAM, **head), theirs.fileno())
        theirs.close()
        ours.settimeout(LIMIT)
        return ours

    def credit(self, number: int, size: int) -> None:
        self.send(frame(CREDIT, number, struct.pack("<I", size)))

    def check(self, number: int, own: bool = True) -> str:
        """Asks for a health check; returns the problem, or an empty text."""
        self.send(frame(CHECK, number, flags=1 if own else 0))
        got = self.read()
        assert (got.kind, got.flags, got.code, got.number) == (HEALTH, 0, 0, number)
        return got.payload.decode()

    def cancel(self, number: int, reason: int = CLIENT_GONE) -> None:
        self._cancel.send(frame(CANCEL, number, code=reason))

    def read(self) -> Frame:
        while True:
            if len(self._buffer) >= HEADER.size:
                length, kind, flags, code, number = HEADER.unpack_from(self._buffer)
                stop = HEADER.size + length
                if len(self._buffer) >= stop:
                    payload, self._buffer = self._buffer[HEADER.size : stop], self._buffer[stop:]
                    kinds = (RESPONSE, STREAM, CHUNK, END, ERROR, USAGE, HEALTH, METRICS)
                    assert kind in kinds, f"torn frame: kind {kind}"
                    if kind == METRICS:
                        self.metrics.append(json.loads(payload))
                        continue
                    return Frame(kind, flags, code, number, payload)
            more = self.data.recv(1 << 20)
            if not more:
                raise EOFError
            self._buffer += more

    def read_until_last(self, number: int) -> list[Frame]:
        """All frames up to the last one of a request; nothing of another request may come between."""
        frames = []
        while True:
            got = self.read()
            assert got.number == number
            frames.append(got)
            if got.kind in (RESPONSE, END, ERROR):
                return frames

    def answer(self, number: int, body: Any = b"", **head: Any) -> Frame:
        self.ask(number, body, **head)
        got = self.read()
        assert got.number == number
        return got

    def quiet(self, seconds: float) -> bool:
        """Returns true if the engine sends nothing for that long: for things that must not happen."""
        if self._buffer:
            return False
        self.data.settimeout(seconds)
        try:
            self._buffer += self.data.recv(1)
            return False
        except (TimeoutError, socket.timeout):
            return True
        finally:
            self.data.settimeout(LIMIT)

    def close(self) -> None:
        self.data.close()
        self._cancel.close()


class Engine:
    """A real engine process."""

    def __init__(self, directory: Path, code: str, concurrency: int = 1, boot: bool = True, **changes: Any) -> None:
        self.directory = directory
        (directory / "model.py").write_text(textwrap.dedent(code))
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(LIMIT)
        self.errors = directory / "stderr"
        self.output = directory / "stdout"
        with self.errors.open("wb") as err, self.output.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, str(ENGINE)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                pass_fds=(3,),
                start_new_session=True,  # so that processes forked by the model can be ended with it
                preexec_fn=lambda: os.dup2(theirs.fileno(), 3),
            )
        theirs.close()
        self.begin()
        self.boot = {
            "type": "boot",
            "model": "cowsay",
            "instance": "0123456789ab",
            "engine": {"kind": "python", "module": "model", "function": "handle_request"},
            "model_dir": str(directory),
            "cache_dir": str(directory),
            "weights_dir": None,
            "device": "cpu",
            "concurrency": concurrency,
            **changes,
        }
        if boot:
            self.tell(self.boot)

    def begin(self) -> None:
        """Starts the engine up to its `boot`."""

    def tell(self, message: dict[str, Any], *fds: int) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.control.sendmsg([json.dumps(message).encode()], rights)

    def hear(self) -> dict[str, Any]:
        heard: dict[str, Any] = json.loads(self.control.recv(128 * 1024))
        return heard

    def ready(self) -> str:
        heard = self.hear()
        assert heard["type"] == "ready", heard
        mode: str = heard["mode"]
        return mode

    def attach(self) -> Link:
        data, their_data = socket.socketpair()
        cancel, their_cancel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.tell({"type": "attach"}, their_data.fileno(), their_cancel.fileno())
        their_data.close()
        their_cancel.close()
        return Link(data, cancel)

    def wait(self) -> int:
        return self.process.wait(LIMIT)

    def printed(self) -> str:
        """Output of the model, without the marks of requests."""
        return re.sub(r"^INFO \[[!-~]+\] ", "", self.output.read_text(), flags=re.MULTILINE)

    def log(self) -> str:
        return self.errors.read_text()

    def await_log(self, text: str) -> None:
        """Waits until a line with `text` has been written to standard error."""
        self.await_true(lambda: text in self.log(), f"{text!r} in the log")

    def await_true(self, condition: Any, what: str) -> None:
        due = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < due, f"no {what}; log: {self.log()}"
            assert self.process.poll() is None or condition(), f"engine ended without {what}; log: {self.log()}"
            time.sleep(0.002)

    def close(self) -> None:
        self.control.close()
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it and all its forks have ended
        self.process.wait()


class Forked(Engine):
    """The same from a zygote, which is `process`."""

    preload: tuple[str, ...] = ()

    def begin(self) -> None:
        self.zygote = self.control
        self.tell({"type": "preload", "model_dir": str(self.directory), "modules": self.preload})
        self.preloaded = self.hear()
        self.instance = 0
        if self.preloaded["type"] == "preloaded":
            self.control, self.instance = self.fork()

    def fork(self) -> tuple[socket.socket, int]:
        """Another process of the zygote: its control socket and its number."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(LIMIT)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        with self.errors.open("ab") as err, self.output.open("ab") as out:
            fds = array.array("i", [theirs.fileno(), out.fileno(), err.fileno()])
            order = json.dumps({"type": "fork", "instance": "0123456789ab"}).encode()
            self.zygote.sendmsg([order], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        theirs.close()
        packet, ancillary, _, _ = ours.recvmsg(1024, socket.CMSG_SPACE(12))
        assert json.loads(packet) == {"type": "forked"}
        pid, _, _ = struct.unpack("iii", ancillary[0][2])
        return ours, pid

    def close(self) -> None:
        self.zygote.close()
        if self.instance:
            try:
                os.killpg(self.instance, signal.SIGKILL)
            except ProcessLookupError:
                pass
        super().close()
