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

_COUNT = b'{"kind":"count-tokens"'
_HEAD = wire.HEAD_LENGTH.size
_BEGINNING = _HEAD + len(_COUNT)


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
    def counts_tokens(self) -> bool:
        """True if only the tokens of the prompt are asked for. The kind is the first field of the head, which is not
        parsed for it."""
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
