"""`def` handlers with a concurrency above 1: the main thread reads, as many threads as that handle and answer.

A cancellation is an asynchronous exception in the handler's thread (`PyThreadState_SetAsyncExc`). Unlike a signal's it
is only noted and raised some instructions later, so closing the window also withdraws one that is still on its way. It
reaches a thread that waits in the kernel only when that wait is over.
"""

from __future__ import annotations

import ctypes
import queue
import select
import threading

from omni._engine import cancel, wire
from omni._engine.connection import Closed, Connection, Unusable
from omni._engine.descriptors import end_copy, give_up
from omni._engine.handling import Handling
from omni._engine.intake import Intake

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

    from omni._engine.batch import Member
    from omni._engine.intake import Job
    from omni._engine.model import Model
    from omni._json import Buffer

    Work = tuple[Connection, cancel.Cancels, Job]

_set_async_exc = ctypes.pythonapi.PyThreadState_SetAsyncExc
_set_async_exc.argtypes = (ctypes.c_ulong, ctypes.py_object)
_NOTHING: Any = ctypes.py_object()  # NULL: withdraws an exception that is on its way


class Threads:
    """Serves with threads. There are two data connections while one scheduler takes over from another."""

    mode = "concurrent"

    def __init__(self, model: Model) -> None:
        self._model = model
        # Bounded by the schedulers, of which each sends at most `concurrency` requests at a time.
        self._jobs: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._handlers = [HandlerThread(model, self._jobs) for _ in range(model.concurrency)]
        for at, handler in enumerate(self._handlers):
            threading.Thread(target=handler.run, name=f"omni-handler-{at}", daemon=True).start()
        self._connections: dict[int, DataConnection] = {}
        self._poll = select.poll()

    def wait(self, control: socket.socket) -> None:
        """Reads until the worker's next message is there."""
        self._poll.register(control, select.POLLIN)
        while not self._poll_once():
            pass
        self._poll.unregister(control)

    def serve(self, data: socket.socket, cancel_socket: socket.socket, control: socket.socket) -> None:
        """Takes a connection. Handlers that ignore its end keep their threads until they return."""
        held = DataConnection(self._model, Connection(data), cancel_socket)

        def notify(number: int | None) -> None:
            for handler in self._handlers:
                handler.interrupt(held.cancels, number)

        watch = cancel.Watch(cancel_socket, data, control, held.cancels, notify)
        held.listener = threading.Thread(target=watch.run, name="omni-cancel", daemon=True)
        held.listener.start()
        self._connections[data.fileno()] = held
        self._poll.register(data, select.POLLIN)

    def finish(self, control: socket.socket) -> None:
        """Reads until no connection is left."""
        while self._connections:
            self._poll_once()

    def _poll_once(self) -> bool:
        """Waits once, and reads what is there. True when there is something that no connection brings."""
        others = False
        for fd, _ in self._poll.poll():
            held = self._connections.get(fd)
            if held is None:
                others = True
                continue
            try:
                self._receive(held, held.connection, held.cancels)
            except Closed:
                self._poll.unregister(fd)
                del self._connections[fd]
                held.close()
        return others

    def _receive(self, held: DataConnection, connection: Connection, cancels: cancel.Cancels) -> None:
        for kind, flags, _, number, payload in connection.read():
            if kind == wire.REQUEST:
                job = held.intake.request(number, flags, payload)
                if job is not None:
                    self._jobs.put((connection, cancels, job))
            elif kind == wire.BATCH:
                held.intake.begin(number, flags, payload)
            elif kind == wire.CREDIT:
                for handler in self._handlers:
                    handler.grant(cancels, number, wire.HEAD_LENGTH.unpack(payload)[0])
            elif kind == wire.CHECK:
                problem = self._model.check() if flags & wire.OWN_CHECK else None
                with connection.writing:
                    connection.send(wire.health(number, problem))
            else:
                raise Unusable(f"the scheduler sent a frame of kind {kind}")


class DataConnection:
    """A data connection, and the thread that receives its cancellations."""

    listener: threading.Thread

    def __init__(self, model: Model, connection: Connection, cancel_socket: socket.socket) -> None:
        self.connection = connection
        self.cancels = cancel.Cancels()
        self.intake = Intake(model, connection, self.cancels)
        self._cancel = cancel_socket

    def close(self) -> None:
        """The other side has closed it."""
        cancel.shut(self._cancel)  # and with it the listener
        self.listener.join()
        self.intake.close()
        with self.connection.writing:
            self.connection.close()
        self._cancel.close()


class HandlerThread(Handling):
    """A thread that handles requests, one at a time."""

    def __init__(self, model: Model, jobs: queue.SimpleQueue[Work]) -> None:
        super().__init__(model)
        self._jobs = jobs
        self._thread = 0
        self._lock = threading.Lock()
        """Guards what follows; the main thread, the watch thread and this one meet here. This thread takes the lock
        itself: in `Condition.__enter__`, which is Python, a cancellation could be raised between the lock and the
        `with`."""
        self._state = threading.Condition(self._lock)
        self._cancels = cancel.Cancels()
        self._number: int | None = None
        self._granted = 0
        self._armed = False
        self._sent = False

    def run(self) -> None:
        """The thread."""
        self._thread = threading.get_ident()
        while True:
            connection, cancels, job = self._jobs.get()
            with self._state:
                self._connection, self._cancels = connection, cancels
                self._number, self._granted = job[0], 0
            try:
                self._handle(job)
            except Closed:
                pass
            except BaseException as err:
                give_up(err)

    def grant(self, cancels: cancel.Cancels, number: int, credit: int) -> None:
        """More credit for this stream, if it is this thread's."""
        with self._state:
            if self._number == number and self._cancels is cancels:
                self._granted += credit
                self._state.notify()
            elif self._cancels is cancels and number in self._members:
                self._members[number].credit += credit

    def interrupt(self, cancels: cancel.Cancels, number: int | None) -> None:
        """Cancels this request (None: whatever runs on the connection), if it is this thread's."""
        with self._state:
            if self._cancels is not cancels or self._number is None or number not in (None, self._number):
                return
            self._state.notify()
            reason = cancels.reason(self._number)
            if self._armed and not self._sent and reason is not None:
                self._sent = True
                _set_async_exc(self._thread, type(cancel.exception(reason)))

    def _arm(self, number: int) -> None:
        with self._lock:
            reason = self._cancels.reason(number)
            if reason is not None:
                raise cancel.exception(reason)
            self._sent = False
            self._armed = True

    def _disarm(self) -> None:
        end_copy()
        with self._lock:
            if self._armed:
                self._armed = False
                if self._sent:
                    _set_async_exc(self._thread, _NOTHING)

    def _begin_member(self, member: Member) -> None:
        with self._state:
            self._number, self._credit, self._granted = member.number, member.credit, 0

    def _leave_member(self, member: Member, batch: int) -> None:
        with self._state:
            member.credit, self._granted = self._credit + self._granted, 0
            self._number = batch

    def _send(self, data: bytes, more: Buffer | None = None) -> None:
        with self._connection.writing:
            self._connection.send(data, more)

    def _await_credit(self, number: int, need: int) -> None:
        with self._state:
            while self._credit + self._granted < need:
                reason = self._cancels.reason(number)
                if reason is not None:
                    raise cancel.exception(reason)
                self._state.wait()
            self._credit += self._granted
            self._granted = 0
