"""The engine's own descriptors: not inherited, out of the way of 0, 1 and 2, and closed in a forked copy.

A model may fork (multiprocessing does). The copy must never answer on the engine's sockets: it closes them, and when
its code returns to the engine instead of ending, the engine ends it. The copies that a zygote makes are engines.
"""

from __future__ import annotations

import os
import socket
import weakref

_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
_copied = False


def adopt(fd: int) -> socket.socket:
    """The socket behind a descriptor that is the engine's from now on."""
    fd = above_standard(fd)
    os.set_inheritable(fd, False)
    sock = socket.socket(fileno=fd)
    _sockets.add(sock)
    return sock


def above_standard(fd: int) -> int:
    """The descriptor moved away from 0, 1 and 2, where it lands in a model that has closed one of these."""
    if fd > 2:
        return fd
    import fcntl

    moved: int = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved


def end_copy() -> None:
    """Ends this process silently if the model's code has forked it: called where the model's code returns to the
    engine,
    before a lock is taken that a thread of the parent may have held."""
    if _copied:
        os._exit(0)


def begin_anew() -> None:
    """Marks this fork as an engine: a zygote has forked it, not the model's code."""
    global _copied
    _copied = False
    _sockets.clear()


def _leave() -> None:
    global _copied
    _copied = True
    for sock in list(_sockets):
        sock.close()


os.register_at_fork(after_in_child=_leave)


def give_up(error: BaseException) -> None:
    """Ends a process that cannot answer any more: at once, and silently in a fork by the model's code."""
    end_copy()
    from omni import _log

    _log.report("ERROR", f"the engine cannot go on\n{_log.traceback_of(error)}")
    os._exit(1)
