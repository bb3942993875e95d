"""Results of handlers read back from the engine's frames: for the local run and for tests."""

from __future__ import annotations

import sys
from array import array

from omni import _json, errors
from omni._engine import wire
from omni._engine.answer import Stream
from omni.generation import Finish, Reasoning, Token, ToolCall, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Union

    from omni.generation import Piece

    Chunk = tuple[int, bytes]
    Content = Union[list[Chunk], Stream]


def opened(frames: bytes | Stream) -> tuple[int, dict[str, Any], Content]:
    """Status, head and content of an answer. Raises `HTTPError` for an error."""
    if isinstance(frames, Stream):
        opening = Stream.opening(frames)
        _, _, _, status, _ = wire.HEADER.unpack_from(opening)
        payload = opening[wire.HEADER_LENGTH :]
        return status, _json.decode(payload) if payload else {}, frames
    _, kind, flags, status, _ = wire.HEADER.unpack_from(frames)
    payload = frames[wire.HEADER_LENGTH :]
    if kind == wire.ERROR:
        raise error(status, payload)
    head: dict[str, Any] = {}
    if flags & wire.HEAD:
        (length,) = wire.HEAD_LENGTH.unpack_from(payload)
        head, payload = _json.decode(payload[4 : 4 + length]), payload[4 + length :]
    return status, head, [(flags & wire.CONTENT, payload)]


def error(status: int, payload: bytes) -> errors.HTTPError:
    """The error of a frame."""
    body = _json.decode(payload)
    if status == 400 and body.get("code") == errors.ContextLengthExceeded.code:
        return errors.ContextLengthExceeded(body["message"], body.get("parameter"))
    if status == 400:
        return errors.BadRequest(body["message"], body.get("parameter"))
    return errors.HTTPError(status, body["message"])


def plain(flags: int, payload: bytes) -> Any:
    """A piece of any stream: text, bytes or a JSON value."""
    if flags == wire.TEXT:
        return payload.decode()
    return payload if flags == wire.BYTES else _json.decode(payload)


def generated(flags: int, payload: bytes) -> Piece:
    """A piece of generated text."""
    value = plain(flags, payload)
    if flags != wire.EVENT:
        if isinstance(value, (str, bytes)):
            return value
        raise TypeError(f"the handler answered with {value!r}, which is no generated text")
    kind = value.pop("type")
    if kind == "token":
        value["text"] = bytes(value.pop("bytes")) if "bytes" in value else value["text"]
        value["top"] = [(one["text"], one["logprob"]) for one in value.get("top", [])]
        return Token(**value)
    if kind == "finish":
        used = value.get("usage")
        return Finish(value.get("reason"), None if used is None else Usage(**used))
    return Reasoning(value["text"]) if kind == "reasoning" else ToolCall(**value)


def embeddings(data: bytes) -> tuple[list[list[float]], int, int | None]:
    """Vectors, their length, and the tokens that they took, if the handler has counted them."""
    (length,) = wire.HEAD_LENGTH.unpack_from(data)
    header = _json.decode(data[4 : 4 + length])
    numbers, width = array("f", data[4 + length :]), header["dimensions"]
    if sys.byteorder == "big":
        numbers.byteswap()
    rows = [numbers[at : at + width].tolist() for at in range(0, len(numbers), max(width, 1))]
    usage = header.get("usage")
    return rows, width, None if usage is None else usage["prompt_tokens"]
