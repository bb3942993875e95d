#!/usr/bin/env python3
"""Many connections that do little: their memory, their effect on other clients, and their end in time.

Usage (root): bench/connections.py [--seconds 12] [--rate 200] [--idle 10000] [--slow 500] [--large 100] [--only KIND]

For each kind: a quiet time of normal load, then the same load while the connections are there, then a wait until the
node has ended all of them. Normal load is offered at a fixed rate by a process of its own, a latency counting from the
moment at which the request was due; the connections are held by a third process. A control shows that process's own
effect on the machine: the same slow writers beside the node, on a socket that is not read.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import multiprocessing
import random
import re
import resource
import socket
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from load import Address, Answer, Offer, between, failed, failures, milliseconds, request, statuses, steady
from node import Node, status
from report import machine, row, spread

GOAL = 1.2
ECHO = "def handle_request(request, context):\n    return None\n"
SLOW = """
import asyncio
LARGE = "x" * (8 << 20)
EVENT = {"text": "x" * 16384}
async def handle_request(request, context):
    if request.headers.get("content-type") == "application/octet-stream":
        async for _ in request.body.stream():
            pass
        return None
    return LARGE if request.body.json == "large" else events()
async def events():
    while True:
        yield EVENT
"""
# In seconds: the deadline of a request to the model that is used slowly, the time after it in which the answer must be
# taken, and the node's deadline for a head.
REQUEST, TAKEN, HEAD = 20, 5, 30
MANIFEST = f'[scaling]\nmin-instances = 1\nconcurrency = 1024\nqueue = 10000\n[timeouts]\nrequest = "{REQUEST}s"\n'
CONFIG = f'[server]\nheader-timeout = "{HEAD}s"\n'
# A slow client sends or takes a little so often, in seconds.
PAUSE = 1.0
# A time is looked at in so many parts.
PARTS = 4
# Opened at a time, so that the kernel's queue of the listener never overflows.
OPENING = 64
# Memory that the node may keep afterwards, MiB, and the time it may take to free the rest, in seconds.
SPARE = 24
GIVEN_BACK = 45.0
# A timer of the node may be this late, and the connections of one kind take a while to be opened.
LATE = 3.0


@dataclass(frozen=True)
class Kind:
    """A way to hold connections; they end this many seconds after they are held."""

    name: str
    what: str
    ends: float
    sends: bytes
    drips: bytes = b""
    takes: int = 0


@dataclass
class End:
    """How one connection ended: its time, and the status of the answer that it had, 0 for none."""

    seconds: float
    status: int


def kinds(address: Address) -> list[Kind]:
    """All kinds. Silent clients wait for the node; dripping ones go on until the node ends them."""
    head = request(address, "slow", b"x" * 100_000).partition(b"xxx")[0]
    upload = request(address, "slow", b"x" * (4 << 20), "application/octet-stream").partition(b"xxx")[0]
    large, events = (request(address, "slow", word) for word in (b'"large"', b'"events"'))
    return [
        Kind("idle", "idle, kept alive", HEAD, request(address, "echo", b"null")),
        Kind("heads", "slow writers of a head", HEAD, b"POST / HTTP/1.1\r\nslow: ", b"x"),
        Kind("bodies", "slow writers of a body", REQUEST, head, b" "),
        Kind("uploads", "slow writers of an upload", REQUEST, upload, bytes(1024)),
        Kind("answers", "slow readers of 8 MiB of JSON", REQUEST + TAKEN, large, takes=1024),
        Kind("events", "slow readers of events", REQUEST + TAKEN, events, takes=1024),
    ]


def hold(address: Address, kind: Kind, count: int, limit: float, pipe: Pipe) -> None:
    """The process that holds the connections: says when all are there, and at the end how each ended."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    pipe.send(asyncio.run(_hold(address, kind, count, limit, pipe)))


async def _hold(address: Address, kind: Kind, count: int, limit: float, pipe: Pipe) -> list[End]:
    opening = asyncio.Semaphore(OPENING)
    there = 0

    async def one() -> End:
        nonlocal there
        with contextlib.closing(socket.socket()) as held:
            async with opening:
                came = bytearray(await _open(held, address, kind))
            begun = time.monotonic()
            there += 1
            if there == count:
                pipe.send(None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await (_drip(held, kind, came) if kind.drips or kind.takes else _silent(held))
            found = re.match(rb"HTTP/1.1 (\d+)", came)
            return End(time.monotonic() - begun, int(found[1]) if found else 0)

    return list(await asyncio.gather(*(one() for _ in range(count))))


async def _open(held: socket.socket, address: Address, kind: Kind) -> bytes:
    """Connects and sends what stands at the beginning; where a whole request was sent, the answer's beginning."""
    loop = asyncio.get_running_loop()
    held.setblocking(False)
    if kind.takes:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await loop.sock_connect(held, address)
    await loop.sock_sendall(held, kind.sends)
    return b"" if kind.drips else await loop.sock_recv(held, kind.takes or 65536)


async def _silent(held: socket.socket) -> None:
    """Waits for the node's end."""
    with contextlib.suppress(OSError):
        while await asyncio.get_running_loop().sock_recv(held, 65536):
            pass


async def _drip(held: socket.socket, kind: Kind, came: bytearray) -> None:
    """Sends and takes a little again and again until the node ends it; keeps the beginning of what it answered."""
    # Each in its own time: together they would be bursts.
    await asyncio.sleep(random.uniform(0, PAUSE))
    while True:
        # A reset is known before all is read that had come until then.
        if held.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            break
        try:
            if kind.drips:
                held.send(kind.drips)
            data = held.recv(kind.takes or 65536)
            if not data:
                break
            came += data[: 64 - len(came)]
        except BlockingIOError:
            pass
        except OSError:
            break
        await asyncio.sleep(PAUSE)


def resident(node: Node) -> float:
    """The scheduler's memory, MiB."""
    return status(node.pid, "VmRSS")


def held(address: Address, kind: Kind, count: int) -> Pipe:
    """Starts the process that holds them; returns when all are there. How they ended comes later."""
    pipe, theirs = multiprocessing.Pipe(duplex=False)
    limit = kind.ends + LATE + 60
    context = multiprocessing.get_context("spawn")
    context.Process(target=hold, args=(address, kind, count, limit, theirs), daemon=True).start()
    theirs.close()
    pipe.recv()
    return pipe


def offered(node: Node, seconds: float, rate: float) -> Offer:
    """Normal load, from now on."""
    return Offer(node.address, steady("echo", rate, seconds), {"echo": b"null"})


def compared(quiet: list[Answer], answers: list[Answer], seconds: float) -> tuple[str, float]:
    """The p99 of both as text, and their ratio."""
    edges = [seconds * part / PARTS for part in range(PARTS + 1)]
    first, second = (
        [milliseconds(between(some, *edge), 0.99) for edge in itertools.pairwise(edges)] for some in (quiet, answers)
    )
    ratio = statistics.median(second) / statistics.median(first)
    return f"{spread(first)} to {spread(second)} ms, {ratio:.2f}x", ratio


def control(node: Node, kind: Kind, count: int, seconds: float, rate: float) -> None:
    """Slow writers that have nothing to do with the node: the kernel takes what they send."""
    quiet = offered(node, seconds, rate).answers()
    with socket.create_server(("127.0.0.1", 0), backlog=count) as nobody:
        pipe = held(nobody.getsockname(), kind, count)
        answers = offered(node, seconds, rate).answers()
    pipe.recv()
    row(f"{count:,} {kind.what}, beside the node: p99 of its requests", compared(quiet, answers, seconds)[0])


def measure(node: Node, kind: Kind, count: int, seconds: float, rate: float) -> None:
    """Measures a kind: quiet, with the connections, and after them."""
    before = resident(node)
    quiet = offered(node, seconds, rate).answers()
    pipe = held(node.address, kind, count)
    offer = offered(node, seconds, rate)
    most = max(sizes(node, offer, seconds))
    answers = offer.answers()
    ends = pipe.recv()
    seconds_after, after = given_back(node, before)

    row(f"{count:,} {kind.what}: scheduler, MiB", f"{before:.0f}, with {most:.0f}")
    is_back = after <= before + SPARE
    row("    after them", f"{after:.0f}, {seconds_after:.0f} s later", f"<= {before + SPARE:.0f}", is_back)
    row("    for each connection", f"{(most - before) * 1024 / count:.1f} KiB")
    figure, ratio = compared(quiet, answers, seconds)
    row("    p99 of the others", figure, f"<= {GOAL}x", ratio <= GOAL)
    row("    requests of the others that failed", failures(quiet + answers), "0", not failed(quiet + answers))
    times = [end.seconds for end in ends]
    late = sum(seconds > kind.ends + LATE for seconds in times)
    row("    ended by the node after", f"{min(times):.1f} to {max(times):.1f} s", f"{kind.ends} s each", not late)
    row("    answered", statuses(end.status for end in ends))


def given_back(node: Node, before: float) -> tuple[float, float]:
    """Waits for the node to give back what the connections took: after how many seconds it has what, MiB."""
    begun = time.monotonic()
    while True:
        since, now = time.monotonic() - begun, resident(node)
        if now <= before + SPARE or since > GIVEN_BACK:
            return since, now
        time.sleep(0.5)


def sizes(node: Node, offer: Offer, seconds: float) -> Iterator[float]:
    """The scheduler's memory while the load lasts."""
    while offer.since() < seconds:
        yield resident(node)
        time.sleep(0.2)


def main() -> None:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=12, help="of normal load, quiet and with each kind")
    parser.add_argument("--rate", type=float, default=200, help="requests a second of normal load")
    parser.add_argument("--idle", type=int, default=10_000, help="idle connections")
    parser.add_argument("--slow", type=int, default=500, help="connections of each slow kind")
    parser.add_argument("--large", type=int, default=100, help="slow readers of a large answer")
    parser.add_argument("--only", nargs="+", choices=[kind.name for kind in kinds(("", 0))], metavar="KIND")
    chosen = parser.parse_args()
    machine()
    models: dict[str, Path | dict[str, str]] = {
        "echo": {"model.py": ECHO},
        "slow": {"model.py": SLOW, "omni.toml": MANIFEST},
    }
    counts = {"idle": chosen.idle, "answers": chosen.large}
    with Node(models, config=CONFIG) as node:
        node.wake("echo", None)
        node.ctl("start", "slow", "--wait")
        print(f"normal load {chosen.rate:.0f} requests/s; scheduler {resident(node):.1f} MiB before any", flush=True)
        for kind in kinds(node.address):
            if not chosen.only or kind.name in chosen.only:
                measure(node, kind, counts.get(kind.name, chosen.slow), chosen.seconds, chosen.rate)
                if kind.drips:
                    control(node, kind, chosen.slow, chosen.seconds, chosen.rate)


if __name__ == "__main__":
    main()
