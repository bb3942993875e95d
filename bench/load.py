"""Open-loop load: a separate client process, which offers requests at the moments of a plan whatever comes back.

Called by the benchmarks beside it. Invariant: a latency counts from the moment at which the request was due, so a node
that stalls pays for all requests that were due meanwhile; every planned request has exactly one answer, of status 0
when the connection broke or nothing came in time. The client runs before everything else on its processor, as far as
the system allows, because it stands for other machines: the node and its models wait for a processor instead.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import gc
import multiprocessing
import os
import re
import selectors
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection as Pipe
from typing import NamedTuple

# An idle connection is not used again after this long: the node ends it at some time, perhaps under the next request.
IDLE = 10.0
# Connections at a time; what is due beyond that waits, and its wait counts.
CONNECTIONS = 512
# After the last moment of the plan.
PATIENCE = 70.0
# For the process to start before the first moment of the plan.
AHEAD = 0.6

Plan = list[tuple[float, str]]
Address = tuple[str, int]


class Answer(NamedTuple):
    """Result of a request. Times are in seconds; `due` is of the plan."""

    due: float
    model: str
    seconds: float
    status: int
    version: str


class Offer:
    """A client process at work on a plan: moments in order, each with the model that is asked then. `keeps`: whether it
    uses a connection again.
    """

    def __init__(self, address: Address, plan: Plan, bodies: dict[str, bytes], keeps: bool = True) -> None:
        self.began = time.time() + AHEAD
        self.closed = 0
        self._answers, answers = multiprocessing.Pipe(duplex=False)
        context = multiprocessing.get_context("spawn")
        requests = {model: request(address, model, body, keeps=keeps) for model, body in bodies.items()}
        arguments = (address, plan, requests, self.began, answers)
        self._process = context.Process(target=_offer, args=arguments, daemon=True)
        self._process.start()
        answers.close()

    def since(self) -> float:
        """Seconds of the plan that are over."""
        return time.time() - self.began

    def wait_until(self, moment: float) -> None:
        """Sleeps until that moment of the plan."""
        time.sleep(max(0.0, moment - self.since()))

    def answers(self) -> list[Answer]:
        """All of them, in the order in which they were due; waits for the last.

        From then on `closed` is known: how many idle connections the node has ended.
        """
        found: list[Answer]
        found, self.closed = self._answers.recv()
        self._process.join()
        return sorted(found)


def steady(model: str, rate: float, seconds: float) -> Plan:
    """The same model at even distances."""
    return [(number / rate, model) for number in range(int(rate * seconds))]


def between(answers: Iterable[Answer], begin: float, end: float) -> list[Answer]:
    """Answers to requests that were due in a time."""
    return [answer for answer in answers if begin <= answer.due < end]


def failed(answers: Iterable[Answer]) -> int:
    """How many were not answered well."""
    return sum(answer.status != 200 for answer in answers)


def statuses(found: Iterable[int]) -> str:
    """Number of answers of each status; 0 stands for no answer."""
    counted = sorted(collections.Counter(found).items())
    return ", ".join(f"{status or 'nothing'}: {count:,}" for status, count in counted)


def failures(answers: Iterable[Answer]) -> str:
    """How many of how many failed, and how."""
    answers = list(answers)
    bad = [answer.status for answer in answers if answer.status != 200]
    how = f" ({statuses(bad)})" if bad else ""
    return f"{len(bad):,} of {len(answers):,}{how}"


def milliseconds(answers: Iterable[Answer], part: float) -> float:
    """The latency that a part of the requests does not exceed; not a number when there are none."""
    ordered = sorted(answer.seconds for answer in answers)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] * 1e3 if ordered else float("nan")


def before_others() -> None:
    """Gives this process real-time priority, where it has the right to that."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def _offer(address: Address, plan: Plan, requests: dict[str, bytes], began: float, answers: Pipe) -> None:
    before_others()
    gc.disable()  # for its pauses; the answers of a plan are all that it would look through
    # The only selector that sleeps for parts of a millisecond.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        answers.send(runner.run(_run(_Client(address, requests), plan, began)))


async def _run(client: _Client, plan: Plan, began: float) -> tuple[list[Answer], int]:
    loop = asyncio.get_running_loop()
    client.zero = loop.time() + began - time.time()
    for due, model in plan:
        if (wait := client.zero + due - loop.time()) > 0:
            await asyncio.sleep(wait)
        client.ask(due, model)
    end = loop.time() + PATIENCE
    while len(client.answers) < len(plan) and loop.time() < end:
        await asyncio.sleep(0.02)
    return client.answers + client.unanswered(), client.closed_idle


class _Client:
    """The requests under way, and the connections between them."""

    def __init__(self, address: Address, requests: dict[str, bytes]) -> None:
        self.zero = 0.0
        self.answers: list[Answer] = []
        self.closed_idle = 0
        self._address = address
        self._requests = requests
        self._waiting: collections.deque[tuple[float, str]] = collections.deque()
        self._idle: collections.deque[_Connection] = collections.deque()
        self._open: set[_Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()

    def ask(self, due: float, model: str) -> None:
        """Sends a request, on a connection that is idle or on a new one."""
        now = asyncio.get_running_loop().time()
        while self._idle and self._idle[0].since < now - IDLE:
            self._idle.popleft().transport.close()
        if self._idle:
            self._idle.pop().send(due, model, self._requests[model])
            return
        self._waiting.append((due, model))
        self._open_more()

    def _open_more(self) -> None:
        if len(self._opening) < len(self._waiting) and len(self._open) + len(self._opening) < CONNECTIONS:
            task = asyncio.create_task(self._connect())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _connect(self) -> None:
        try:
            make = functools.partial(_Connection, self)
            await asyncio.get_running_loop().create_connection(make, *self._address)
        except OSError:
            if self._waiting:
                self.answered(*self._waiting.popleft(), 0, "")

    def opened(self, connection: _Connection) -> None:
        """Called when a connection is established: it is free."""
        self._open.add(connection)
        self.free(connection)

    def free(self, connection: _Connection) -> None:
        """Gives the connection the next request that waits."""
        if self._waiting:
            due, model = self._waiting.popleft()
            connection.send(due, model, self._requests[model])
        else:
            connection.since = asyncio.get_running_loop().time()
            self._idle.append(connection)

    def closed(self, connection: _Connection) -> None:
        """Called when a connection is closed."""
        self._open.discard(connection)
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)
            self.closed_idle += 1
        if connection.asked:
            self.answered(*connection.asked, 0, "")
        self._open_more()

    def answered(self, due: float, model: str, status: int, version: str) -> None:
        """Called at the end of a request."""
        seconds = asyncio.get_running_loop().time() - self.zero - due
        self.answers.append(Answer(due, model, seconds, status, version))

    def unanswered(self) -> list[Answer]:
        """Abandoned requests."""
        asked = [connection.asked for connection in self._open if connection.asked]
        return [Answer(due, model, PATIENCE, 0, "") for due, model in [*asked, *self._waiting]]


class _Connection(asyncio.Protocol):
    """A connection that is kept alive, with one request at a time."""

    transport: asyncio.Transport

    def __init__(self, client: _Client) -> None:
        self.since = 0.0
        self.asked: tuple[float, str] | None = None
        self._client = client
        self._came = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._client.opened(self)

    def send(self, due: float, model: str, text: bytes) -> None:
        """Sends a request; the answer before it is complete."""
        self.asked = (due, model)
        self.transport.write(text)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        self._came += data
        head, end, body = self._came.partition(b"\r\n\r\n")
        if not end or len(body) < int(header(head, b"content-length") or 0):
            return
        self._came = b""
        if self.asked:
            self._client.answered(*self.asked, int(head[9:12]), header(head, b"x-omni-model-version"))
            self.asked = None
            if header(head, b"connection").lower() == "close":
                self.transport.close()
            else:
                self._client.free(self)

    def connection_lost(self, _error: Exception | None) -> None:
        """Called by the loop."""
        self._client.closed(self)


def request(address: Address, model: str, body: bytes, media: str = "application/json", keeps: bool = True) -> bytes:
    """The bytes of a request; one that does not keep its connection says so."""
    head = f"POST /ai/run/{model} HTTP/1.1\r\nhost: {address[0]}:{address[1]}\r\ncontent-type: {media}\r\n"
    close = b"" if keeps else b"connection: close\r\n"
    return head.encode() + close + b"content-length: %d\r\n\r\n" % len(body) + body


def header(head: bytes, name: bytes) -> str:
    """The value in an answer's head, or nothing."""
    found = re.search(rb"\r\n" + name + rb": *([^\r]*)", head, re.I)
    return found[1].decode("ascii", "replace") if found else ""
