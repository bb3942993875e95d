"""Requests and batches out of a connection's frames, in the order in which they came."""

from __future__ import annotations

from struct import unpack

from omni._engine import wire
from omni._engine.batch import Batch, Member
from omni._engine.connection import Unusable
from omni._engine.request import WireRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union

    from omni._engine.cancel import Cancels
    from omni._engine.connection import Connection
    from omni._engine.model import Model
    from omni._json import Buffer

    Job = tuple[int, Union[WireRequest, Batch]]


class Intake:
    """The requests of one connection. A batch is complete when all of its requests have come; a model without a handler
    of single requests gets batches of one."""

    def __init__(self, model: Model, connection: Connection, cancels: Cancels) -> None:
        self._single = model.single
        self._batches = model.batch
        self._connection = connection
        self._cancels = cancels
        self._number = 0
        self._isolates = False
        self._awaited: list[int] = []
        """Members of the batch that has begun, those that have not come."""
        self._members: list[Member] = []

    def begin(self, number: int, flags: int, payload: Buffer) -> None:
        """Begins a batch."""
        count, rest = divmod(len(payload), 8)
        if rest or not 0 < count <= wire.MAX_BATCH or self._awaited or self._batches is None:
            raise Unusable(f"a batch frame of {len(payload)} bytes")
        self._number = number
        self._isolates = flags & wire.ISOLATE != 0
        self._awaited = list(reversed(unpack(f"<{count}Q", payload)))

    def request(self, number: int, flags: int, payload: Buffer) -> Job | None:
        """Takes a request; the job that is complete with it."""
        descriptor = self._connection.descriptor() if flags & wire.BODY_STREAM else None
        request = WireRequest(number, payload, self._connection.received, self._cancels, descriptor)
        if self._awaited:
            if number != self._awaited.pop():
                raise Unusable(f"the request {number} has come amid a batch that it does not belong to")
            self._members.append(Member(number, request))
            if self._awaited:
                return None
            members, self._members = self._members, []
            return self._number, self._batch(self._number, members, self._isolates)
        if self._single is None and not request.counts_tokens:
            return number, self._batch(number, [Member(number, request)], False)
        return number, request

    def _batch(self, number: int, members: list[Member], isolates: bool) -> Batch:
        assert self._batches is not None
        return Batch(number, members, self._batches, self._cancels, isolates)

    def close(self) -> None:
        """Gives back the descriptors of a batch that was never complete."""
        for member in self._members:
            member.request.close()
