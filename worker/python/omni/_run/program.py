"""The local run from start to end: load, serve, and with `--reload` begin anew when a file of the model changes.

A reload replaces the process: modules that were imported stay imported in any other way. The listening socket is handed
on, so a client that connects meanwhile waits. The answer that is being written is written to its end, unless that takes
longer than `cancel-grace`. A handler that goes on so long after its deadline is given up in the same way.
"""

from __future__ import annotations

import faulthandler
import io
import os
import queue
import signal
import sys
import threading

from omni import _log
from omni._engine.model import LoadError, Model
from omni._engine.output import errors_of
from omni._run import manifest, startup
from omni._run.answer import Gone
from omni._run.handling import Handling
from omni._run.server import Server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

_SOCKET = "_OMNI_RUN_SOCKET"
_CHANGED = "the model's files have changed: it is loaded anew"
_CACHES = {
    "HF_HOME": "huggingface",
    "MPLCONFIGDIR": "matplotlib",
    "NUMBA_CACHE_DIR": "numba",
    "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
    "TORCH_HOME": "torch",
    "TRITON_CACHE_DIR": "triton",
}
_USER = {"USER": "model", "LOGNAME": "model", "SHELL": "/bin/sh", "LANG": "C.UTF-8"}
_LOOK = 0.3
"""Seconds between two looks at the model's files."""


def serve(directory: Path, port: int, reload: bool) -> int:
    """Serves until Ctrl-C. Returns the exit code."""
    inherited = os.environ.pop(_SOCKET, None)
    seen = _files(directory)
    _escape()
    told = _manifest(directory)
    if told is None and not reload:
        return 1
    values = told or manifest.Manifest({})
    try:
        server = Server(directory, values, port, None if inherited is None else int(inherited))
    except (OSError, OverflowError) as err:
        print(f"port {port} cannot be used: {err}; choose another one with --port", file=sys.stderr, flush=True)
        return 1
    successor = Successor(server)
    server.on_stuck = successor.after_a_stuck_handler
    if inherited is None:
        address = f"http://127.0.0.1:{server.server_address[1]}"
        others = "" if values.kind == "custom" else f", and at {address}/v1 for clients of the OpenAI API"
        print(f"{directory.name} is at {address}/ai/run/{directory.name}{others}", flush=True)
        for note in server.notes():
            print(note, file=sys.stderr, flush=True)
    successor.hear_interrupts()
    changed = threading.Event()
    if reload:
        watch = (directory, seen, server, changed, values.grace, successor)
        threading.Thread(target=_watch, args=watch, daemon=True).start()
    model = _load(directory, told) if told is not None else None
    if model is None and (successor.is_ending or not reload):
        server.server_close()
        return 1
    try:
        if model is None:
            server.is_loaded = False
            server.accept()
            changed.wait()
        else:
            _answer(model, server)
    except KeyboardInterrupt:
        pass
    finally:
        if model is not None:
            model.teardown()
    if changed.is_set() and not successor.is_ending:
        successor.begin(_CHANGED)
    server.server_close()
    return 0


def _escape() -> None:
    """Text that standard output's encoding has not is printed as an engine prints it."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=errors_of(sys.stdout))


def _manifest(directory: Path) -> manifest.Manifest | None:
    """The manifest of a model that a node would start."""
    try:
        told = manifest.read(directory)
        problem = startup.problem_of_files(directory, told)
    except manifest.ManifestError as err:
        problem = str(err)
    if problem is None:
        return told
    print(problem, file=sys.stderr, flush=True)
    return None


def _load(directory: Path, told: manifest.Manifest) -> Model | None:
    os.environ.update(told.env)
    _set_defaults()
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
        "batches": told.has_batches,
        "engine": {"kind": "python", "module": told.module, "function": told.function},
    }
    try:
        model = Model(boot)
    except LoadError as err:
        print(err.message, file=sys.stderr, flush=True)
        return None
    named = startup.annotated_kind(model)
    if not told.is_read:
        told.kind = named or told.kind
    problem = startup.problem_of_kind(model, told)
    if problem is not None:
        model.teardown()
        print(problem, file=sys.stderr, flush=True)
        return None
    if named is not None and told.kind == "custom":
        note = f'the handler takes requests for {named}: with `kind = "{named}"` in [model] of omni.toml it gets them'
        print(f"{note} from the OpenAI API, too", file=sys.stderr, flush=True)
    return model


def _set_defaults() -> None:
    """Variables that a node sets, where this environment and the manifest have not (`launcher/variables.rs`)."""
    caches = os.environ.setdefault("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
    for name, folder in _CACHES.items():
        os.environ.setdefault(name, os.path.join(caches, folder))
    for name, value in _USER.items():
        os.environ.setdefault(name, value)


def _answer(model: Model, server: Server) -> None:
    """Answers requests until there is a reason to end, and those that were taken before it.

    From then on no connection is accepted: the next process finds them in the queue of the listening socket.
    """
    server.accept()
    handling = Handling(model)
    ends = False
    while True:
        try:
            job = server.jobs.get(block=not ends)
        except queue.Empty:
            return
        if job is None:
            ends = True
            server.refuse()
            continue
        request, client = job
        if client.is_over:
            continue  # its deadline passed while it waited
        client.begun = True
        try:
            handling.answer(request, client)
        except Gone as err:
            if err.args:
                _log.report("INFO", str(err))
        finally:
            client.done.set()


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


def _watch(
    directory: Path,
    seen: dict[str, tuple[int, int]],
    server: Server,
    changed: threading.Event,
    grace: float,
    successor: Successor,
) -> None:
    """Ends the run when a file is another one and stands still; whatever still runs after the grace is given up."""
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
        wait(grace)
        successor.begin(_CHANGED)


class Successor:
    """The process that takes the place of this one."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._environment = dict(os.environ)
        self._directory = os.getcwd()
        self._once = threading.Lock()
        self.is_ending = False
        """Ctrl-C was pressed."""

    def hear_interrupts(self) -> None:
        """From the second Ctrl-C on the process ends at once. The first one is raised in the main thread, whose handler
        may catch it; this needs the main thread for nothing."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        threading.Thread(target=self._hear, args=(reading,), daemon=True).start()

    def _hear(self, reading: int) -> None:
        while True:
            for number in os.read(reading, 64):
                if number != signal.SIGINT:
                    continue
                if self.is_ending:
                    os._exit(128 + signal.SIGINT)
                self.is_ending = True
                self._server.jobs.put(None)

    def after_a_stuck_handler(self) -> None:
        """Begins it, with the stacks of this process in the log."""
        if self.is_ending:
            os._exit(1)
        self._server.refuse()
        _log.report("ERROR", "the handler ignored its cancellation; the stacks of all threads")
        faulthandler.dump_traceback(all_threads=True)
        self.begin("the handler goes on after its deadline: the model is loaded anew")

    def begin(self, why: str) -> None:
        """Replaces this process by one that is started as this was: in the same directory, which relative paths of the
        command line and of PYTHONPATH are relative to."""
        self._once.acquire()  # and never released: there is one successor
        self._server.refuse()
        print(why, file=sys.stderr, flush=True)
        self._refuse_the_waiting()
        sys.stdout.flush()
        os.set_inheritable(self._server.socket.fileno(), True)
        self._environment[_SOCKET] = str(self._server.socket.fileno())
        command = (
            [sys.executable, *sys.orig_argv[1:]]
            if hasattr(sys, "orig_argv")
            else [sys.executable, "-m", "omni", *sys.argv[1:]]
        )
        os.chdir(self._directory)
        os.execve(sys.executable, command, self._environment)

    def _refuse_the_waiting(self) -> None:
        while True:
            try:
                job = self._server.jobs.get(block=False)
                if job is not None:
                    job[1].failure(503, 3040, "the model is loaded anew: try again")
            except queue.Empty:
                return
            except Gone:
                pass
