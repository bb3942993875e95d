"""The local run from start to end: load, serve, and with `--reload` begin anew when a file of the model changes.

A reload replaces the process: modules that were imported stay imported in any other way. The listening socket is handed
on, so a client that connects meanwhile waits; and the answer that is being written is written to its end.
"""

from __future__ import annotations

import os
import queue
import sys
import threading

from omni import _log
from omni._engine.model import LoadError, Model
from omni._run import manifest
from omni._run.handling import Gone, Handling
from omni._run.server import Server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

_SOCKET = "_OMNI_RUN_SOCKET"
_LOOK = 0.3
"""Seconds between two looks at the model's files."""


def serve(directory: Path, port: int, reload: bool) -> int:
    """Serves until Ctrl-C. Returns the exit code."""
    inherited = os.environ.pop(_SOCKET, None)
    started_in = os.getcwd()
    seen = _files(directory)
    try:
        told = manifest.read(directory)
    except manifest.ManifestError as err:
        print(err, file=sys.stderr)
        told = None
    server = Server(directory.name, told or manifest.Manifest({}), port, None if inherited is None else int(inherited))
    if inherited is None:
        print(f"{directory.name} is at http://127.0.0.1:{server.server_address[1]}/ai/run/{directory.name}", flush=True)
    before = dict(os.environ)
    model = _load(directory, told) if told is not None else None
    if model is None and not reload:
        server.server_close()
        return 1
    changed = threading.Event()
    try:
        if reload:
            threading.Thread(target=_watch, args=(directory, seen, server, changed), daemon=True).start()
        if model is None:
            changed.wait()
        else:
            _answer(model, server)
    except KeyboardInterrupt:
        pass
    finally:
        if model is not None:
            model.teardown()
    if changed.is_set():
        _begin_anew(server, before, started_in)
    server.server_close()
    return 0


def _load(directory: Path, told: manifest.Manifest) -> Model | None:
    os.environ.update(told.env)
    if told.weights is not None and not os.path.isdir(told.weights):
        print(f"there is no folder {told.weights} here, which [weights] of omni.toml names: make it", file=sys.stderr)
        return None
    boot: dict[str, Any] = {
        "model": directory.name,
        "instance": "laptop",
        "model_dir": str(directory),
        "cache_dir": "",
        "weights_dir": told.weights,
        "device": "cpu",
        "concurrency": 1,
        "module": told.module,
        "function": told.function,
    }
    try:
        return Model(boot)
    except LoadError as err:
        print(err.message, file=sys.stderr, flush=True)
        return None


def _answer(model: Model, server: Server) -> None:
    """Answers requests until there is a reason to end, and those that were taken before it.

    From then on no connection is accepted: the next process finds them in the queue of the listening socket.
    """
    threading.Thread(target=server.serve_forever, daemon=True).start()
    handling = Handling(model)
    ends = False
    while True:
        try:
            job = server.jobs.get(block=not ends)
        except queue.Empty:
            return
        if job is None:
            ends = True
            server.shutdown()
            continue
        request, client = job
        try:
            handling.answer(request, client)
        except Gone as err:
            _log.report("INFO", str(err))
        finally:
            client.done()


def _files(directory: Path) -> dict[str, tuple[int, int]]:
    """The model's files with their times and sizes."""
    found = {}
    for folder, folders, files in os.walk(directory):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        for name in files:
            path = os.path.join(folder, name)
            try:
                status = os.stat(path)
            except OSError:
                continue  # it has just been removed
            found[path] = (status.st_mtime_ns, status.st_size)
    return found


def _watch(directory: Path, seen: dict[str, tuple[int, int]], server: Server, changed: threading.Event) -> None:
    """Ends the run when a file is another one and stands still."""
    wait = threading.Event().wait
    while True:
        wait(_LOOK)
        now = _files(directory)
        if now == seen:
            continue
        while True:
            wait(_LOOK)
            later = _files(directory)
            if later == now:
                break
            now = later
        changed.set()
        server.jobs.put(None)
        return


def _begin_anew(server: Server, environment: dict[str, str], started_in: str) -> None:
    """Replaces this process by one that is started as this was: in the same directory, which relative paths of the
    command line and of PYTHONPATH are relative to."""
    print("the model's files have changed: it is loaded anew", file=sys.stderr, flush=True)
    os.set_inheritable(server.socket.fileno(), True)
    environment[_SOCKET] = str(server.socket.fileno())
    command = (
        [sys.executable, *sys.orig_argv[1:]]
        if hasattr(sys, "orig_argv")
        else [sys.executable, "-m", "omni", *sys.argv[1:]]
    )
    os.chdir(started_in)
    os.execve(sys.executable, command, environment)
