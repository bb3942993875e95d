"""Requests as they lie on the wire. The head is parsed when the handler first asks for something in it."""

from __future__ import annotations

import os

from omni import _json
from omni._engine import wire
from omni._engine.body import SocketStream, StreamedBody
from omni.request import Body, Head, Headers, Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from omni._engine.cancel import Cancels

_KIND = b'{"kind":"'
_COUNT = _KIND + b'count-tokens"'
_HEAD = wire.HEAD_LENGTH.size
_NAME = _HEAD + len(_KIND)
_BEGINNING = _HEAD + len(_COUNT)
_LONGEST = _NAME + 32
"""The end of the longest name of a kind, and more."""


class WireRequest(Request):
    """A request over a frame's payload. With a descriptor, the body comes through that."""

    __slots__ = ("_cancels", "_descriptor", "_number", "_payload", "_received")

    def __init__(
        self, number: int, payload: _json.Buffer, received: float, cancels: Cancels, descriptor: int | None = None
    ) -> None:
        self._number = number
        self._cancels = cancels
        self._payload = payload
        self._received = received
        self._descriptor = descriptor
        self._known = None
        self._body = None

    def _head(self) -> Head:
        head = self._known
        if head is None:
            (length,) = wire.HEAD_LENGTH.unpack_from(self._payload)
            told = _json.decode(self._payload[4 : 4 + length])
            head = self._known = Head(
                told["id"],
                told["method"],
                Headers(told["headers"]),
                self._received + told["timeout_ms"] / 1000,
                told.get("session"),
                told.get("body_length"),
                told.get("body_handed", False),
                told.get("kind"),
                told.get("parameters"),
            )
        return head

    @property
    def kind(self) -> str | None:
        """Kind of the request, where the node has read it: the first field of the head, which is not parsed for it."""
        if self._payload[_HEAD:_NAME] != _KIND:
            return None
        return str(self._payload[_NAME:_LONGEST], "ascii", "replace").partition('"')[0]

    @property
    def counts_tokens(self) -> bool:
        """True if only the tokens of the prompt are asked for, by the kind."""
        return self._payload[_HEAD:_BEGINNING] == _COUNT

    @property
    def cancelled(self) -> bool:
        """True once the client no longer waits."""
        return self._cancels.reason(self._number) is not None

    @property
    def body(self) -> Body:
        """The body."""
        body = self._body
        if body is None:
            if self._descriptor is None:
                (length,) = wire.HEAD_LENGTH.unpack_from(self._payload)
                body = Body(self._payload[4 + length :])
            else:
                head = self._head()
                body = StreamedBody(SocketStream(self._descriptor, head.body_length, head.body_handed))
                self._descriptor = None  # the stream owns it now
            self._body = body
        return body

    @property
    def is_streamed(self) -> bool:
        """True if the body comes through a descriptor."""
        return self._descriptor is not None or isinstance(self._body, StreamedBody)

    async def gather(self) -> None:
        """Reads a streamed body to its end, in an event loop."""
        body = self.body
        if isinstance(body, StreamedBody):
            await body.gather()

    def close(self) -> None:
        """Gives back the body's descriptor, read or not."""
        if self._descriptor is not None:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor = None
        elif isinstance(self._body, StreamedBody):
            self._body.close()
