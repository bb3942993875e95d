"""A zygote: imports a generation's modules once, then forks the instances of that generation from itself.

It runs no handler, loads no model and opens no GPU. Instances begin with everything imported and share those pages
until they write to them. Each is forked twice, so that it becomes a child of the sandbox's pid 1, which outlives the
zygote and sees how the instance ends. What a fork leaves behind is why it has one thread: locks that other threads hold
would stay locked in the copy.
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import sys
import time

from omni._engine import descriptors
from omni._engine.control import ENGINE_FD, PERMANENT_FAILURE, Control

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_GONE_WITHIN = 1.0
"""Seconds that a thread, which a library has ended, may take to leave the kernel's list."""


def run(control: Control, order: dict[str, Any]) -> Control | int:
    """Serves until its worker closes, and exits then.

    Returns in a forked copy, with the control socket of the instance, and when it cannot be used, with the exit code.
    """
    # What an instance needs beside the author's modules, before the model's directory comes first in sys.path.
    from omni._engine import outcome, serial, tasks, threads  # noqa: F401
    from omni._engine.model import enter

    enter(order["model_dir"])
    problem = _preload(order["modules"]) or _threads_left()
    if problem is not None:
        control.say_at_length({"type": "unusable"}, problem)
        return PERMANENT_FAILURE
    gc.collect()
    gc.freeze()  # a collection in an instance does not touch, and so copy, what all of them share
    control.say({"type": "preloaded"})
    while True:
        message = control.receive_descriptors()
        if message is None:
            _flush()
            os._exit(0)  # what modules want done at exit is the instances' to do
        told, fds = message
        if told["type"] != "fork":
            raise ValueError(f"omni-worker sent `{told['type']}` to a zygote")
        try:
            copy = _fork([descriptors.above_standard(fd) for fd in fds])
        except OSError as err:
            control.say_at_length({"type": "fork-failed", "instance": told["instance"]}, f"cannot fork: {err.strerror}")
            continue
        if copy:
            return _instance()


def _preload(modules: list[str]) -> str | None:
    """Imports them; the reason when one cannot be."""
    from omni._engine.model import without_machinery

    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as err:
            return f"cannot import {name}, which `[python] preload` names\n{without_machinery(err)}"
    return None


def _threads_left() -> str | None:
    """The reason why this process cannot be forked from, if there is one.

    A library that knows forks ends its threads before one (OpenBLAS does), so they are counted after a first fork.
    """
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    deadline = time.monotonic() + _GONE_WITHIN
    while len(names := _threads()) > 1:
        if time.monotonic() > deadline:
            extra = ", ".join(sorted(names)[:8])
            return f"the modules of `[python] preload` have started threads, which a fork does not copy: {extra}"
        time.sleep(0.001)
    return None


def _threads() -> list[str]:
    """The names of this process's threads, as the kernel knows them."""
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm") as comm:
                names.append(comm.read().strip())
        except OSError:
            pass  # it has just ended
    return names


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def _fork(fds: list[int]) -> bool:
    """Forks twice; True in the copy, whose descriptors are in place."""
    _flush()  # or the copy would write it again
    try:
        child = os.fork()
    except OSError:
        for fd in fds:
            os.close(fd)
        raise
    if child:
        for fd in fds:
            os.close(fd)
        _, status = os.waitpid(child, 0)
        if status:
            number = os.WEXITSTATUS(status) if os.WIFEXITED(status) else errno.ECHILD
            raise OSError(number, os.strerror(number))
        return False
    try:
        grandchild = os.fork()
    except OSError as err:
        os._exit(err.errno or 1)
    if grandchild:
        os._exit(0)
    for fd, place in zip(fds, (ENGINE_FD, 1, 2)):
        os.dup2(fd, place)
        os.close(fd)
    return True


def _instance() -> Control:
    """Makes this copy an instance: a session of its own, its own chance, its own control socket."""
    os.setsid()
    _reseed()
    descriptors.begin_anew()
    control = Control()
    try:
        control.say({"type": "forked"})
    except OSError:
        os._exit(1)  # nobody wants it any more
    return control


def _reseed() -> None:
    """The module `random` has done it already, by itself; numpy's global generator has not."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        try:
            numpy_random.seed()
        except Exception:
            pass  # an author's module of that name
