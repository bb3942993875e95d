"""`def` handlers with concurrency 1: the main thread reads, handles, answers, one request after the other.

A blocking loop is the fastest there is in Python (`docs/decisions/wire.md`), but it is deaf while a handler computes.
So the watch thread raises a signal when the request at hand is cancelled, and the signal's handler raises the
cancellation right there in the model's code. The window for that is `_current`: the number of the request whose code
runs, None whenever the engine itself is at work.

The signal is a real-time one because SIGUSR1 belongs to authors (faulthandler, profilers).
"""

from __future__ import annotations

import select
import signal
import threading
import time
from collections import deque

from omni._engine import cancel, wire
from omni._engine.connection import Closed, Connection, Unusable
from omni._engine.handling import Handling
from omni._engine.intake import Intake

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from types import FrameType

    from omni._engine.batch import Member
    from omni._engine.intake import Job
    from omni._engine.model import Model
    from omni._json import Buffer

CANCEL_SIGNAL = signal.SIGRTMIN
_AGAIN = 0.01
"""Seconds between two signals for one cancellation."""


class Serial(Handling):
    """Serves one data connection after the other."""

    mode = "serial"

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._current: int | None = None
        self._streaming: int | None = None
        self._backlog: deque[Job] = deque()
        self._thread = threading.get_ident()
        signal.signal(CANCEL_SIGNAL, self._interrupt)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {CANCEL_SIGNAL})

    def wait(self, control: socket.socket) -> None:
        """Waits for the worker's next message between two connections."""

    def serve(self, data: socket.socket, cancel_socket: socket.socket, control: socket.socket) -> None:
        """Returns when the connection has ended."""
        self._connection = Connection(data)
        self._cancels = cancel.Cancels()
        self._intake = Intake(self._model, self._connection, self._cancels)
        self._readable = select.poll()
        self._readable.register(data, select.POLLIN)
        watch = cancel.Watch(cancel_socket, data, control, self._cancels, self._notify)
        listener = threading.Thread(target=watch.run, name="omni-cancel", daemon=True)
        listener.start()
        try:
            while True:
                while self._backlog:
                    self._handle(self._backlog.popleft())
                self._receive()
        except Closed:
            cancel.shut(cancel_socket)  # and with it the listener
        listener.join()
        while self._backlog:
            self._backlog.popleft()[1].close()
        self._intake.close()
        self._connection.close()
        cancel_socket.close()

    def finish(self, control: socket.socket) -> None:
        """No connection is left: this runner has one at a time."""

    def _receive(self) -> None:
        connection = self._connection
        for kind, flags, _, number, payload in connection.read():
            if kind == wire.REQUEST:
                job = self._intake.request(number, flags, payload)
                if job is not None:
                    self._backlog.append(job)
            elif kind == wire.CREDIT:
                if number == self._streaming:
                    self._credit += wire.HEAD_LENGTH.unpack(payload)[0]
                elif number in self._members:
                    self._members[number].credit += wire.HEAD_LENGTH.unpack(payload)[0]
            elif kind == wire.BATCH:
                self._intake.begin(number, flags, payload)
            elif kind == wire.CHECK:  # never while a request runs
                self._send(wire.health(number, self._model.check() if flags & wire.OWN_CHECK else None))
            else:
                raise Unusable(f"the scheduler sent a frame of kind {kind}")

    def _notify(self, number: int | None) -> None:
        """In the watch thread. Signals until the handler has seen it: a signal that comes while the main thread is on
        its way into a blocking call is noted by Python, but does not end that call. The signal's handler looks again;
        here the check only spares needless signals."""
        while (current := self._current) is not None and (number is None or number == current):
            signal.pthread_kill(self._thread, CANCEL_SIGNAL)
            time.sleep(_AGAIN)

    def _interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        number = self._current
        if number is None:
            return
        reason = self._cancels.reason(number)
        if reason is not None:
            self._current = None
            raise cancel.exception(reason)

    def _arm(self, number: int) -> None:
        self._current = number
        reason = self._cancels.reason(number)  # after the line above: one of the two threads sees the other
        if reason is not None:
            self._current = None
            raise cancel.exception(reason)

    def _disarm(self) -> None:
        self._current = None

    def _begin_member(self, member: Member) -> None:
        self._streaming, self._credit = member.number, member.credit

    def _leave_member(self, member: Member, batch: int) -> None:
        self._streaming, member.credit = None, self._credit

    def _send(self, data: bytes, more: Buffer | None = None) -> None:
        self._connection.send(data, more)

    def _await_credit(self, number: int, need: int) -> None:
        """Requests that come meanwhile wait in line. Interruptible is only the poll: bytes that were read are never
        lost to an exception."""
        self._streaming = number
        while self._credit < need:
            try:
                self._arm(number)
                self._readable.poll()
            finally:
                self._disarm()
            self._receive()
