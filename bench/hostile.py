#!/usr/bin/env python3
"""Cost of a hostile model and of a hostile client for the scheduler and for another model.

Usage (root): bench/hostile.py [--rounds 3] [--seconds 5] [--rate 100] [--only NAME ...]

Each attack is tried on a separate node: a quiet time, then one under the attack, of the same load on a neighbour, which
is another model unless the table says otherwise. The load comes from a process of its own at a fixed rate, and a
latency counts from the moment at which the request was due. The scheduler's processor time is of the attacked time, its
memory is its greatest growth meanwhile. The clients of the attack run on this machine, too, and compete for its
processors. OMNI_BIN names the programs: run it with those of two commits to compare them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from load import Answer, Offer, between, failures, milliseconds, request, steady
from node import Node, processor, status
from report import machine

SOURCE = (Path(__file__).parent / "hostile_model.py").read_text()
NEIGHBOUR = "def handle_request(request, context):\n    return None\n"
MANIFEST = """
[resources]
memory = "512MiB"
cpus = 1.0
[scaling]
max-instances = 8
concurrency = {concurrency}
[timeouts]
cancel-grace = "1s"
"""

SETTLE = 1.0
POLITE = json.dumps({"how": "work"}).encode()

# HTTP/2 (RFC 9113) and HPACK (RFC 7541): types of frames, flags, and a request's head of indexed and literal fields.
HEADERS, RST_STREAM, SETTINGS = 1, 3, 4
END_HEADERS, END_STREAM = 4, 1
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
POST, HTTP, PATH, AUTHORITY, LENGTH, ACCEPT = b"\x83", b"\x86", b"\x04", b"\x01", b"\x0f\x0d", b"\x93"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name: bytes, value: str) -> bytes:
    """A field whose name is in the static table, with a value of fewer than 127 bytes."""
    return name + bytes([len(value)]) + value.encode()


class Attack:
    """The hostile side of one measurement: threads that go on until `end`, and what they count."""

    def __init__(self, node: Node, end: float) -> None:
        self.node = node
        self.end = end
        self.counted = 0
        self._threads: list[threading.Thread] = []

    def left(self) -> float:
        return self.end - time.monotonic()

    def each(self, number: int, does: Callable[[], None]) -> None:
        """Has so many threads do it again and again, whatever becomes of it."""

        def again() -> None:
            while self.left() > 0.05:
                with contextlib.suppress(OSError):
                    does()
                    self.counted += 1

        self._threads += [threading.Thread(target=again, daemon=True) for _ in range(number)]

    def run(self) -> None:
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join(max(0.0, self.left()) + 1)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.node.address, timeout=max(0.05, self.left()))

    def send(self, asked: dict[str, object], limit: int | None = None) -> socket.socket:
        """A request to the hostile model, with its deadline in milliseconds."""
        head = request(self.node.address, "hostile", json.dumps(asked).encode(), keeps=False)
        if limit is not None:
            head = head.replace(b"content-type:", b"x-omni-timeout-ms: %d\r\ncontent-type:" % limit, 1)
        connection = self.connect()
        connection.sendall(head)
        return connection

    def model(self, how: str, number: int) -> None:
        """Has the model do it, in so many requests at a time."""

        def ask() -> None:
            with self.send({"how": how, "seconds": self.left()}, int(self.left() * 1000) + 500) as connection:
                first = connection.recv(1 << 16)
                if first.startswith((b"HTTP/1.1 503", b"HTTP/1.1 429")):
                    self.node.ctl("start", "hostile")
                    time.sleep(0.2)
                while connection.recv(1 << 16):
                    pass

        self.each(number, ask)

    def hold(self, connection: socket.socket, sent: bytes) -> None:
        """Sends, and keeps the connection for as long as the attack lasts, or the node lets it."""
        with connection:
            connection.sendall(sent)
            while self.left() > 0 and connection.recv(1 << 16):
                pass

    def http2(self) -> socket.socket:
        connection = self.connect()
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0))
        return connection

    def head(self, model: str, more: bytes = b"") -> bytes:
        """The fields of a POST to a model; the authority is the node's own."""
        host, port = self.node.address
        return POST + HTTP + literal(PATH, f"/ai/run/{model}") + literal(AUTHORITY, f"{host}:{port}") + more


def usage(attack: Attack) -> None:
    attack.model("usage", 1)


def pieces(attack: Attack) -> None:
    attack.model("pieces", 1)


def partial(attack: Attack) -> None:
    attack.model("partial", 8)


def log(attack: Attack) -> None:
    attack.model("log", 1)


def heads(attack: Attack) -> None:
    """Heads of 1,700 fields each, on 200 streams of a connection, whose bodies never come."""
    fields = attack.head("hostile", literal(LENGTH, "10") + ACCEPT * 1700)
    opened = b"".join(frame(HEADERS, END_HEADERS, stream, fields) for stream in range(1, 401, 2))

    attack.each(10, lambda: attack.hold(attack.http2(), opened))


def resets(attack: Attack) -> None:
    """Requests over HTTP/2 that are reset as soon as they are sent (CVE-2023-44487)."""
    fields = attack.head("hostile", literal(LENGTH, "2"))

    def reset() -> None:
        with attack.http2() as connection:
            for first in range(1, 100_000, 200):
                if attack.left() <= 0:
                    return
                streams = range(first, first + 200, 2)
                connection.sendall(
                    b"".join(
                        frame(HEADERS, END_HEADERS, stream, fields) + frame(RST_STREAM, 0, stream, b"\0\0\0\x08")
                        for stream in streams
                    )
                )

    attack.each(4, reset)


def uploads(attack: Attack) -> None:
    """Bodies of 8 MiB that stop before their last byte."""
    whole = request(attack.node.address, "hostile", bytes(8 << 20))[:-1]

    attack.each(64, lambda: attack.hold(attack.connect(), whole))


def unread(attack: Attack) -> None:
    """Answers of 8 MiB that are not read."""

    def ask() -> None:
        with attack.send({"how": "large", "bytes": 8 << 20}) as connection:
            connection.recv(1)
            time.sleep(max(0.0, attack.left()))

    attack.each(32, ask)


def connections(attack: Attack) -> None:
    """Connections that are opened and closed."""

    def touch() -> None:
        attack.connect().close()

    attack.each(4, touch)


def hang_ups(attack: Attack) -> None:
    """Clients that hang up on handlers which know of no cancellation, ten in all: the neighbour is the same model."""
    left = threading.Semaphore(10)

    def hang_up() -> None:
        if left.acquire(blocking=False):
            attack.send({"how": "stuck", "seconds": 60}).close()
        else:
            attack.counted -= 1
            time.sleep(0.2)

    attack.each(2, hang_up)


def deadlines(attack: Attack) -> None:
    """Deadlines of a millisecond, at handlers which know of no cancellation: the neighbour is the same model."""
    left = threading.Semaphore(10)

    def ask() -> None:
        if left.acquire(blocking=False):
            with attack.send({"how": "stuck", "seconds": 60}, 1) as connection:
                connection.recv(1 << 16)
        else:
            attack.counted -= 1
            time.sleep(0.2)

    attack.each(2, ask)


@dataclass
class Case:
    """An attack, whether the neighbour is the attacked model itself, and the figures of its rounds."""

    name: str
    what: str
    does: Callable[[Attack], None]
    same_model: bool = False
    quiet: list[Answer] = field(default_factory=list)
    attacked: list[Answer] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    counted: list[int] = field(default_factory=list)


CASES = [
    ("usage", "model: usage frames without end", usage),
    ("pieces", "model: a stream of one-byte pieces", pieces),
    ("partial", "model: 8 answers of 16 MiB less a byte", partial),
    ("log", "model: log lines without end", log),
    ("heads", "client: heads of 64 KiB, 2,000 streams", heads),
    ("resets", "client: streams reset at once", resets),
    ("uploads", "client: 64 bodies of 8 MiB less a byte", uploads),
    ("unread", "client: 32 answers of 8 MiB, unread", unread),
    ("connections", "client: connections opened, closed", connections),
    ("hang-ups", "client: 10 hang-ups, same model", hang_ups),
    ("deadlines", "client: 10 deadlines of 1 ms, same model", deadlines),
]
SAME = {"hang-ups", "deadlines"}


def measure(case: Case, seconds: float, rate: float) -> None:
    """A quiet time and an attacked one, on a separate node."""
    asked = "hostile" if case.same_model else "neighbour"
    body = POLITE if case.same_model else b"null"
    manifest = MANIFEST.format(concurrency=4 if case.same_model else 1)
    models = {"hostile": {"model.py": SOURCE, "omni.toml": manifest}, "neighbour": {"model.py": NEIGHBOUR}}
    with Node(models) as node:
        node.wake("neighbour", None)
        node.wake("hostile", {"how": "work"})
        turn = SETTLE + seconds
        offer = Offer(node.address, steady(asked, rate, 2 * turn), {asked: body})
        offer.wait_until(turn)
        Path(f"/proc/{node.pid}/clear_refs").write_text("5")  # the greatest size counts anew
        before, used = status(node.pid, "VmRSS"), processor(node.pid)
        attack = Attack(node, time.monotonic() + turn)
        case.does(attack)
        attack.run()
        case.processor.append((processor(node.pid) - used) / turn)
        case.memory.append(max(0.0, status(node.pid, "VmHWM") - before))
        case.counted.append(attack.counted)
        answers = offer.answers()
    case.quiet += between(answers, SETTLE, turn)
    case.attacked += between(answers, turn + SETTLE, 2 * turn)


def tell(case: Case) -> None:
    """A line of the table."""
    latencies = "  ".join(
        f"{milliseconds(part, 0.5):7.1f} {milliseconds(part, 0.99):8.1f}" for part in (case.quiet, case.attacked)
    )
    used, grown = statistics.median(case.processor), statistics.median(case.memory)
    print(
        f"{case.what:<42} {latencies}  {used:5.0%} {grown:6.0f} MiB  {failures(case.attacked)}"
        f"  ({statistics.median(case.counted):,.0f} times)",
        flush=True,
    )


def main() -> None:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5, help="of each quiet and each attacked time")
    parser.add_argument("--rate", type=float, default=100, help="requests a second to the neighbour")
    parser.add_argument("--only", nargs="+", choices=[name for name, *_ in CASES])
    chosen = parser.parse_args()
    machine()
    heading = "neighbour, ms: p50 p99 quiet, p50 p99 attacked; scheduler: processor, growth; neighbour's failures"
    print(f"{'':<42} {heading}")
    for name, what, does in CASES:
        if chosen.only and name not in chosen.only:
            continue
        case = Case(name, what, does, name in SAME)
        for _ in range(chosen.rounds):
            measure(case, chosen.seconds, chosen.rate)
        tell(case)


if __name__ == "__main__":
    main()
