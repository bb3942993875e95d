"""The server's process: a child of the engine, in the same sandbox, with the same limits.

Its lines are the model's log. When it ends, the engine ends in the same way, so that the node sees the cause and starts
another instance.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time

from omni import _json, _log
from omni._engine.model import LoadError
from omni._engine.openai.failure import MOST
from omni._engine.openai.http import ServerError, ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from omni._engine.openai.http import Address

STARTUP = "OMNI_STARTUP_SECONDS"
"""Variable with the time in which the node wants the instance ready."""
_MARGIN = 2.0
"""Most seconds of it that are left to the node, so that the reason comes before its patience ends."""
_SHOWN = 200
"""Characters of an unwell server's answer that are repeated."""
_FIRST_WAIT = 0.02
_LONGEST_WAIT = 0.5
_DEATH = 0.2
"""Seconds that a process may take from closing its sockets to its end."""
_FAULTS = (OSError, ServerError)


class Server:
    """The server of a model."""

    def __init__(self, command: list[str], model_dir: str, weights_dir: str | None) -> None:
        self.address, self.command = filled(command, model_dir, weights_dir)
        self.model = ""
        """The server's own name for its model."""
        self._process: subprocess.Popen[bytes] | None = None
        self._ending = False

    async def begin(self) -> None:
        """Starts the server, and waits until it is healthy, a little shorter than the node does. Raises `LoadError`."""
        try:
            process = self._process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL)
        except OSError as err:
            message = f"the server cannot be started: {self.command[0]}: {err.strerror}; correct `command` in [runtime]"
            raise LoadError("setup", message, permanent=True) from None
        wait, begun, patience = _FIRST_WAIT, time.monotonic(), _patience()
        while (problem := await self.problem()) is not None:
            if process.poll() is not None:
                raise _not_healthy(f"the server ended before it was healthy: {_how(process.returncode)}")
            if patience is not None and time.monotonic() - begun > patience:
                raise _not_healthy(f"the server was not healthy {patience:g} s after its start: {problem}")
            await asyncio.sleep(wait)
            wait = min(wait * 1.5, _LONGEST_WAIT)
        self.model = await self._name()
        threading.Thread(target=self._watch, args=(process,), name="omni-server", daemon=True).start()

    async def problem(self) -> str | None:
        """The problem that the server's `/health` reports; None when it is well."""
        try:
            exchange = await ask(self.address, "GET", "/health")
        except FileNotFoundError:
            return f"there is no socket at {self.address}, where its command has `{{socket}}`"
        except ConnectionRefusedError:
            place = f"port {self.address}" if isinstance(self.address, int) else str(self.address)
            return f"it does not listen on {place}"
        except _FAULTS as err:
            return f"the server does not answer `/health`: {err}"
        told = await exchange.rest()
        if exchange.status == 200:
            return None
        shown = told.decode("utf-8", "replace").strip()[:_SHOWN]
        return f"the server answers `/health` with status {exchange.status}{': ' + shown if shown else ''}"

    async def end(self) -> None:
        """Asks the server to end, and waits for it. The worker kills what is left after its grace."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        self._ending = True
        process.terminate()
        await asyncio.get_running_loop().run_in_executor(None, process.wait)

    async def outlive(self) -> None:
        """Returns if the server is still there a moment after it has closed a connection. If it has ended, the engine
        does so first, and the node finds the cause."""
        await asyncio.sleep(_DEATH)

    def give_up(self) -> None:
        """Ends a server that cannot be used any more, and with it the engine."""
        if self._process is not None:
            self._process.kill()

    async def _name(self) -> str:
        """The first model that the server lists; "default" where it lists none."""
        exchange = await ask(self.address, "GET", "/v1/models")
        try:
            told: Any = _json.decode(await exchange.whole(MOST)) if exchange.status == 200 else None
            name = told["data"][0]["id"]
        except (ValueError, TypeError, LookupError, ServerError):
            name = None
        finally:
            exchange.close()
        return name if isinstance(name, str) else "default"

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        if self._ending:
            return
        _log.report("ERROR", f"the server ended: {_how(code)}")
        if code < 0:
            faulthandler.disable()  # the stacks of this process say nothing about that one's end
            os.kill(os.getpid(), -code)
            threading.Event().wait(1)  # a signal that this process ignores
        os._exit(code if 0 < code < 64 else 1)


def _not_healthy(message: str) -> LoadError:
    return LoadError("setup", f"{message}; what it printed is in the model's log", permanent=False)


def _patience() -> float | None:
    """Seconds that the server has to become healthy; None where the node does not say."""
    try:
        startup = float(os.environ.get(STARTUP, ""))
    except ValueError:
        return None
    return startup - min(_MARGIN, startup / 4)


def filled(command: list[str], model_dir: str, weights_dir: str | None) -> tuple[Address, list[str]]:
    """Where the server listens, and its command with that filled in."""
    address: Address
    values = {"{model_dir}": model_dir, "{weights_dir}": weights_dir or ""}
    if any("{socket}" in argument for argument in command):
        address = os.path.join(tempfile.mkdtemp(prefix="omni-"), "server.sock")
        values["{socket}"] = address
    else:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = free.getsockname()[1]
        values["{port}"] = str(address)
    made = []
    for argument in command:
        for name, value in values.items():
            argument = argument.replace(name, value)
        made.append(argument)
    return address, made


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
