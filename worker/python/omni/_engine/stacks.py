"""Stacks of all threads, written to the log at the worker's request.

Two signals, since a walk over other threads' stacks is safe only while none of them runs Python code: a thread that
ends frees the frames that the walk reads, and the process dies.

`ASK` is received by a thread that waits for it and writes the stacks while it holds the interpreter. All other threads
have the signal blocked. This works for a model whose threads are in C without the interpreter, its main thread too.

`INSIST` follows a while later, unless the thread has answered and waits again (then the kernel does not have `ASK`
blocked for it, which the worker sees in `/proc`). It is for a thread that still waits for the interpreter:
`faulthandler`'s handler runs right there, without it. Some thread holds the interpreter and does not let go: no other
thread runs, and none ends, as a thread leaves a frame, and takes its state off the list, only while it holds the
interpreter. (C threads may add a state meanwhile, at the head of the list, where the walk does not come again.) Where
so many threads compute that this one had no turn in all that time, the walk is unsafe; the worker's patience
(`worker/instance/src/supervise/mod.rs`) makes that rare. A late `INSIST`, which arrives once the thread waits, is
dropped.
"""

from __future__ import annotations

import _thread
import faulthandler
import signal

ASK = 16  # SIGSTKFLT, which nothing else uses; the name is new in Python 3.11
INSIST = signal.SIGTSTP
"""A terminal's signal, of which an engine has none."""

_BOTH = (ASK, INSIST)


def walk(descriptor: int) -> None:
    """Has the stacks written by whichever thread gets `ASK`: for a process that has one thread, or runs no handlers."""
    faulthandler.register(ASK, descriptor)


def begin(descriptor: int) -> None:
    """Starts the thread that answers. Threads that are started from now on have both signals blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _BOTH)
    faulthandler.register(INSIST, descriptor)
    _thread.start_new_thread(_answer, (descriptor,))


def _answer(descriptor: int) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (INSIST,))  # Linux gives it to `sigwait` first all the same
    while True:
        if signal.sigwait(_BOTH) == ASK:
            faulthandler.dump_traceback(descriptor)
