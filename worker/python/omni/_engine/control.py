"""Messages with omni-worker, one JSON object per packet, on descriptor 3.

Defined in `protocol/engine/src/control.rs` and, for a zygote, in `protocol/node/src/zygote.rs`.
"""

from __future__ import annotations

import array
import socket

from omni import _json
from omni._engine import descriptors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ENGINE_FD = 3
MAX_PACKET = 128 * 1024
MAX_MESSAGE = 32 * 1024
_MAX_DESCRIPTORS = 3
PERMANENT_FAILURE = 78
"""Exit code: with the same content it will be the same again."""


class Control:
    """The engine's end of the control socket."""

    def __init__(self, descriptor: int = ENGINE_FD) -> None:
        self.socket = descriptors.adopt(descriptor)

    def receive(self) -> tuple[dict[str, Any], list[socket.socket]] | None:
        """The next message and its sockets; None when the worker is gone."""
        message = self.receive_descriptors()
        if message is None:
            return None
        told, found = message
        return told, [descriptors.adopt(fd) for fd in found]

    def receive_descriptors(self) -> tuple[dict[str, Any], list[int]] | None:
        """The next message and its descriptors, whatever they are; None when the worker is gone."""
        space = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)
        packet, ancillary, _, _ = self.socket.recvmsg(MAX_PACKET, space, socket.MSG_CMSG_CLOEXEC)
        if not packet:
            return None
        found = array.array("i")
        for _, kind, data in ancillary:
            if kind == socket.SCM_RIGHTS:
                found.frombytes(data)
        return _json.decode(packet), list(found)

    def say(self, message: dict[str, Any]) -> None:
        """Sends one message."""
        self.socket.send(_json.encode(message))

    def ready(self, mode: str) -> None:
        """The model can be served: `mode` is `serial` or `concurrent`."""
        self.say({"type": "ready", "mode": mode})

    def failed(self, phase: str, message: str) -> None:
        """The model cannot be served."""
        self.say_at_length({"type": "failed", "phase": phase}, message)

    def say_at_length(self, about: dict[str, Any], message: str) -> None:
        """Sends `message` with `about`. The end of a long one is kept: there a traceback says what happened."""
        limit = MAX_MESSAGE
        while True:
            kept = message.encode("utf-8", "replace")[-limit:].decode("utf-8", "ignore")
            packet = _json.encode({**about, "message": kept})
            if len(packet) <= MAX_PACKET:
                break
            limit //= 2  # control characters take six bytes each as JSON
        self.socket.send(packet)
