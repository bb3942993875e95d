"""A zygote: imports a generation's modules once, then forks the instances of that generation from itself.

It runs no handler, loads no model and opens no GPU. Instances begin with everything imported and share those pages
until they write to them. Each is forked twice, so that it becomes a child of the sandbox's pid 1, which outlives the
zygote and sees how the instance ends. What a fork leaves behind is why it has one thread, or others that
sleep (`lingering`): locks that they hold would stay locked in the copy.
"""

from __future__ import annotations

import errno
import gc
import os
import sys

from omni._engine import descriptors, output
from omni._engine.control import ENGINE_FD, PERMANENT_FAILURE, Control
from omni._engine.lingering import Lingering, fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def run(control: Control, order: dict[str, Any]) -> Control | int:
    """Serves until its worker closes, and exits then.

    Returns in a forked copy, with the control socket of the instance, and when it cannot be used, with the exit code.
    """
    # Modules that an instance needs beside the author's, imported before the model's directory comes first in sys.path.
    from omni._engine import kinds, outcome, serial, tasks, threads  # noqa: F401
    from omni._engine.model import enter

    enter(order["model_dir"])
    lingering = Lingering()
    problem = _preload(order["modules"], lingering) or lingering.problem()
    if problem is not None:
        control.say_at_length({"type": "unusable"}, problem)
        return PERMANENT_FAILURE
    lingering.tell_of_harmless()
    gc.collect()
    gc.freeze()  # a collection in an instance does not touch, and so copy, what all of them share
    control.say({"type": "preloaded"})
    while True:
        message = control.receive_descriptors()
        if message is None:
            _flush()
            os._exit(0)  # exit handlers of modules belong to the instances
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


def _preload(modules: list[str], lingering: Lingering) -> str | None:
    """Imports them; the reason when one cannot be."""
    from omni._engine import siblings
    from omni._engine.model import without_machinery

    for name in modules:
        try:
            siblings.load(name)
        except BaseException as err:
            return f"cannot import {name}, which `[python] preload` names\n{without_machinery(err)}"
        lingering.imported(name)
    return None


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def _fork(fds: list[int]) -> bool:
    """Forks twice; True in the copy, whose descriptors are in place."""
    _flush()  # or the copy would write it again
    try:
        child = fork()
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
    """Makes this fork an instance: a session, a random seed and a control socket of its own."""
    os.setsid()
    _reseed()
    descriptors.begin_anew()
    output.begin_anew()
    control = Control()
    try:
        control.say({"type": "forked"})
    except OSError:
        os._exit(1)  # the worker has given it up
    return control


def _reseed() -> None:
    """The module `random` has done it already, by itself; numpy's global generator has not."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        try:
            numpy_random.seed()
        except Exception:
            pass  # an author's module of that name
