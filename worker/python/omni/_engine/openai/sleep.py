"""GPU memory of a server that sleeps: the engine has it sleep and wake when the node commands it to.

To the worker this is one more process whose memory can be moved (`protocol/gpu/src/control.rs`): an eviction is
`POST /sleep?level=1`, a restoration `POST /wake_up` and a token as a warm-up. An answer of status 200 is no proof of
either: what has left the card is read from the accounting file, by which the node judges it, too. Level 1 keeps the
weights in host memory; with level 2 they would have to be loaded again.

A server under which a request still runs must not sleep, so its own count of them is waited for. One that does not
wake up may have lost memory: it is ended, and the node starts another.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time

from omni import _json, _log
from omni._engine import descriptors
from omni._engine.model import LoadError
from omni._engine.openai.failure import MOST
from omni._engine.openai.http import ServerError, ask, get
from omni._engine.openai.metrics import MOST as MOST_METRICS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from omni._engine.openai.server import Server

CONTROL = "/gpu/control.sock"
ACCOUNT = "/gpu/account"
COMMAND = struct.Struct("<3Q")
REPORT = struct.Struct("<9Q")
EVICT, RESTORE, USAGE = 1, 2, 3
HELLO, DONE = 1, 2
_HEADER_BYTES, _SLOT_BYTES, _SLOTS = 4096, 128, 256
_SLOT = struct.Struct("<I20x3Q")
"""Process id, managed memory, the part of it that is away, device memory."""
_UNKNOWN = 999
"""The driver's code of an error without a name."""
_RUNNING = ("num_requests_running", "num_running_reqs")
"""Ends of the names of what vLLM and SGLang say of requests that run."""
_DRAINED_WITHIN = 3.0
"""Well within the node's `[gpu] evict-timeout`, which the sleep itself needs."""
_LOOK = 0.02
_WARM_UPS: tuple[tuple[str, dict[str, object]], ...] = (
    ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
    ("/v1/embeddings", {"input": "a"}),
)
_NOT_THIS_ONE = (400, 404, 405, 501)
"""Answers of a server whose model has another task: one that has lost memory answers otherwise, or not at all."""
_FAULTS = (OSError, ServerError, ValueError)


class Sleeper:
    """A server's memory on the card."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._asleep = False
        self._socket: socket.socket | None = None
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self) -> None:
        """Checks that the server can sleep, and offers that to the worker. Raises `LoadError`."""
        if await self._is_sleeping() is not False:
            message = (
                'the server has no `/is_sleeping`: gpu-mode = "sleep" needs one that can sleep, such as vLLM with '
                "`--enable-sleep-mode` and `VLLM_SERVER_DEV_MODE=1` in [env]"
            )
            raise LoadError("setup", message, permanent=True)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(CONTROL)
        self._socket = descriptors.adopt(sock.detach())
        self._socket.setblocking(False)
        self._report(HELLO, 0, 0, 0, 0)
        asyncio.get_running_loop().add_reader(self._socket, self._on_command)

    def _on_command(self) -> None:
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        try:
            packet = self._socket.recv(COMMAND.size)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if len(packet) != COMMAND.size:
            loop.remove_reader(self._socket)  # the worker is gone, and the engine ends with it
            return
        number, code, _ = COMMAND.unpack(packet)
        task = loop.create_task(self._carry_out(number, code))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, number: int, code: int) -> None:
        async with self._turn:
            began, before, error = time.monotonic_ns(), used(), 0
            try:
                # A second command to sleep means that not all has left the card.
                if code == EVICT and (not self._asleep or used() > 0):
                    await self._sleep()
                elif code == RESTORE and self._asleep:
                    await self._wake()
            except _FAULTS as err:
                error = _UNKNOWN
                _log.report(
                    "ERROR", f"the server {'did not go to sleep' if code == EVICT else 'did not wake up'}: {err}"
                )
                if code == RESTORE:
                    self._server.give_up()
            moved = abs(used() - before)
            self._report(DONE, number, error, moved, time.monotonic_ns() - began)

    async def _sleep(self) -> None:
        await self._drained()
        self._asleep = True  # from here on it may be, whatever it answers
        await self._post("/sleep?level=1")
        if await self._is_sleeping() is not True:
            raise ServerError("it has answered `/sleep` and is awake")

    async def _wake(self) -> None:
        await self._post("/wake_up")
        if await self._is_sleeping() is not False:
            raise ServerError("it has answered `/wake_up` and is asleep")
        for path, body in _WARM_UPS:
            if await self._post(path, {"model": self._server.model, **body}):
                break
        self._asleep = False

    async def _drained(self) -> None:
        """Waits until the server has no requests by its own count: one that was cancelled may run on for a moment."""
        until = time.monotonic() + _DRAINED_WITHIN
        while await self._running() > 0:
            if time.monotonic() > until:
                raise ServerError(f"it has requests {_DRAINED_WITHIN:g} seconds after the last one")
            await asyncio.sleep(_LOOK)

    async def _running(self) -> float:
        _, text = await get(self._server.address, "/metrics", MOST_METRICS)
        running = 0.0
        for line in text.decode("utf-8", "replace").splitlines():
            name, _, value = line.rpartition(" ")
            if not line.startswith("#") and name.partition("{")[0].endswith(_RUNNING):
                running += float(value)
        return running

    async def _is_sleeping(self) -> bool | None:
        """True if the server says that it sleeps; None where it says nothing."""
        status, body = await get(self._server.address, "/is_sleeping", MOST)
        try:
            told: Any = _json.decode(body) if status == 200 else None
        except ValueError:
            told = None
        found = told.get("is_sleeping") if isinstance(told, dict) else None
        return found if isinstance(found, bool) else None

    async def _post(self, path: str, body: dict[str, object] | None = None) -> bool:
        """Sends a request; False if the server takes no such warm-up. Raises `ServerError` for any other refusal."""
        exchange = await ask(self._server.address, "POST", path, _json.encode(body or {}))
        try:
            answer = await exchange.whole(MOST)
        finally:
            exchange.close()
        if body is not None and exchange.status in _NOT_THIS_ONE:
            return False
        if exchange.status != 200:
            said = answer.decode("utf-8", "replace")[:200]
            raise ServerError(f"it answered `{path}` with status {exchange.status}: {said}")
        return True

    def _report(self, kind: int, number: int, error: int, moved: int, nanos: int) -> None:
        assert self._socket is not None
        held = used()
        packet = REPORT.pack(kind, number, os.getpid() | error << 32, moved, nanos, held, held, 0, 0)
        try:
            self._socket.send(packet)
        except OSError:
            pass  # the worker is gone


def used() -> int:
    """Bytes on the card by the accounting file, over all processes of the sandbox that live."""
    try:
        with open(ACCOUNT, "rb") as file:
            data = file.read(_HEADER_BYTES + _SLOTS * _SLOT_BYTES)
    except OSError:
        return 0
    total = 0
    for at in range(_HEADER_BYTES, len(data) - _SLOT.size, _SLOT_BYTES):
        process, managed, away, device = _SLOT.unpack_from(data, at)
        if process and os.path.exists(f"/proc/{process}"):
            total += max(managed - away, 0) + device
    return total
