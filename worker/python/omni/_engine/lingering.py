"""Threads that preloaded modules leave running in a zygote: those a fork may do without, and the origin of the others.

A fork copies no thread, and a lock that another thread holds stays locked in the copy. Harmless is a daemon thread of
Python's that sleeps in `Event.wait` with a time-out, as the monitors of progress bars do: it holds no lock there, and
its work is a look at something from time to time. Any other may be what a library waits for, as a pool's workers are.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from struct import iter_unpack

from omni import _log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    Mapping = tuple[int, int, bool, str]

_GONE_WITHIN = 1.0
"""Seconds that a thread, which a library has ended, may take to leave the kernel's list, or to go to sleep."""
_MOST = 8
_STACK = 64 * 1024
_GENERAL = ("ld-", "ld.", "libc.", "libc-", "libpthread", "libstdc++", "libpython", "python")
"""Prefixes of libraries whose code runs in every process's threads."""


class Lingering:
    """The threads of this process beside the main one."""

    def __init__(self) -> None:
        self._started_by: dict[int, str] = {}

    def imported(self, module: str) -> None:
        """Notes whose import new threads belong to."""
        for thread in _threads():
            self._started_by.setdefault(thread, module)

    def problem(self) -> str | None:
        """The reason why this process cannot be forked from, if there is one.

        A library that knows forks ends its threads before one (OpenBLAS does), so they are counted after a first fork.
        """
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        deadline = time.monotonic() + _GONE_WITHIN
        while others := [thread for thread in _threads() if thread not in _harmless()]:
            if time.monotonic() > deadline:
                told = ", ".join(self._described(thread) for thread in others[:_MOST])
                return f"the modules of `[python] preload` have started threads, which a fork does not copy: {told}"
            time.sleep(0.001)
        return None

    def tell_of_harmless(self) -> None:
        """Says in the log what instances do without."""
        found = [self._described(thread) for thread in _threads()]
        if found:
            _log.report("INFO", f"threads of `[python] preload` that instances do without: {', '.join(found[:_MOST])}")

    def _described(self, thread: int) -> str:
        """A thread's name, whose code it runs, and the import that started it."""
        module = self._started_by.get(thread)
        python = next((one for one in threading.enumerate() if one.native_id == thread), None)
        if python is None:
            name, code = _name(thread), _library(thread)
        else:
            target = getattr(python, "_target", None) or type(python).run
            name, code = python.name, f"{target.__module__}.{getattr(target, '__qualname__', '?')}"
        parts = [f"`{name}`", f"running {code}" if code else "", f"started by `import {module}`" if module else ""]
        return " ".join(part for part in parts if part)


def fork() -> int:
    """`os.fork` at a moment when all other threads sleep without a lock, and none of them wakes up before it."""
    if len(os.listdir("/proc/self/task")) == 1:
        return os.fork()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # until then this thread keeps the interpreter
    try:
        deadline = time.monotonic() + _GONE_WITHIN
        while True:
            time.sleep(0.001)  # gives way to a thread that asked before
            if _harmless().issuperset(_threads()):
                return os.fork()
            if time.monotonic() > deadline:
                raise BlockingIOError(11, "a thread of a preloaded module does not go to sleep")
    finally:
        sys.setswitchinterval(interval)


def _threads() -> list[int]:
    """The kernel's numbers of all threads but the main one."""
    return [int(task) for task in os.listdir("/proc/self/task") if int(task) != os.getpid()]


def _harmless() -> set[int]:
    frames = sys._current_frames()
    sleeping = (one for one in threading.enumerate() if one.daemon and _in_timed_wait(frames.get(one.ident or 0)))
    return {one.native_id for one in sleeping if one.native_id is not None}


def _in_timed_wait(frame: FrameType | None) -> bool:
    """True if a thread's newest frames are `Event.wait` with a time-out and the wait of its condition."""
    codes = (threading.Condition.wait.__code__, threading.Event.wait.__code__)
    if frame is None or frame.f_back is None or (frame.f_code, frame.f_back.f_code) != codes:
        return False
    return frame.f_back.f_locals.get("timeout") is not None


def _name(thread: int) -> str:
    try:
        with open(f"/proc/self/task/{thread}/comm") as comm:
            return comm.read().strip()
    except OSError:
        return "?"  # it has just ended


def _library(thread: int) -> str | None:
    """The library whose code runs in a thread that Python does not know: of the addresses on its stack, the outermost
    one that lies outside the libraries of every process.
    """
    try:
        with open(f"/proc/self/task/{thread}/syscall") as call:
            pointer = int(call.read().split()[-2], 16)
        maps = list(_maps())
        top = next(end for start, end, _, _ in maps if start <= pointer < end)
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            bottom = max(pointer & ~7, top - _STACK)
            memory.seek(bottom)
            words = [word for (word,) in iter_unpack("=Q", memory.read(top - bottom & ~7))]
    except (OSError, ValueError, IndexError, StopIteration):
        return None  # it has just ended, or the kernel hides it
    code = [entry for entry in maps if entry[2] and not entry[3].startswith(_GENERAL)]
    for word in reversed(words):
        for start, end, _, name in code:
            if start <= word < end:
                return name
    return None


def _maps() -> Iterator[Mapping]:
    """Begin, end, whether it is executable code of a file, and that file's name."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            parts = line.split(maxsplit=5)
            start, _, end = parts[0].partition("-")
            path = parts[5].strip() if len(parts) == 6 else ""
            yield int(start, 16), int(end, 16), "x" in parts[1] and path.startswith("/"), os.path.basename(path)
