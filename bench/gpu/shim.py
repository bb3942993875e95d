"""Clients under the shim, and the worker's end of the control socket.

The packets are those of `protocol/gpu`: an order is three numbers, a report nine, eight bytes each.
"""

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ORDER = struct.Struct("<QQQ")
REPORT = struct.Struct("<QQIIQQQQQQ")
EVICT, RESTORE, REPORT_ONLY = 1, 2, 3
EVERYTHING = 2**64 - 1
ANSWER_WITHIN = 60.0
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Moved:
    """Result of an order, in bytes and seconds."""

    moved: int
    seconds: float
    managed: int
    resident: int
    error: int


class Client:
    """A process under the shim (or without it), and its control connection."""

    def __init__(self, shim: Path | None, limit: int, mode: str = "unified") -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="omni-gpu-test-")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control = Path(self._folder.name) / "control.sock"
        self._listener.bind(str(control))
        self._listener.listen(1)
        self._listener.settimeout(ANSWER_WITHIN)
        self._connection: socket.socket | None = None
        self._number = 0
        environment = dict(os.environ)
        if shim is not None:
            environment |= {
                "LD_PRELOAD": str(shim),
                "OMNI_GPU_LIMIT_BYTES": str(limit),
                "OMNI_GPU_MODE": mode,
                "OMNI_GPU_ACCOUNT": str(Path(self._folder.name) / "account"),
                "OMNI_GPU_CONTROL": str(control),
            }
        self._process = subprocess.Popen(
            [sys.executable, "-u", str(HERE / "client.py")],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, command: str) -> object:
        """Sends a command and waits for its result."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the client ended at `{command}`")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{answer['call']} answered {answer['error']} at `{command}`")
        return answer["result"]

    def order(self, verb: int, size: int = 0) -> Moved:
        """Sends an order, as the worker would."""
        if self._connection is None:
            self._connection, _ = self._listener.accept()
            self._connection.settimeout(ANSWER_WITHIN)
            REPORT.unpack(self._connection.recv(REPORT.size))  # hello
        self._number += 1
        self._connection.send(ORDER.pack(self._number, verb, size))
        fields = REPORT.unpack(self._connection.recv(REPORT.size))
        _, number, _, error, moved, nanos, managed, resident, _, _ = fields
        if number != self._number:
            raise RuntimeError(f"the shim answered order {number}, not {self._number}")
        return Moved(moved, nanos / 1e9, managed, resident, error)

    def close(self) -> None:
        """Ends the process and leaves nothing."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(ANSWER_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        if self._connection is not None:
            self._connection.close()
        self._listener.close()
        self._folder.cleanup()


@contextlib.contextmanager
def client(shim: Path | None, limit: int, mode: str = "unified") -> Iterator[Client]:
    """A client for the length of a block."""
    started = Client(shim, limit, mode)
    try:
        yield started
    finally:
        started.close()
