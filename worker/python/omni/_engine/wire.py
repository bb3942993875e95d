"""Frames of the data connection, as `protocol/engine/src/frame.rs` defines them. Pure: values in, bytes out.

A frame is a header of 16 bytes (length, kind, flags, code, id; little-endian) and a payload.
"""

from __future__ import annotations

from struct import Struct

from omni import _json, errors

HEADER = Struct("<IBBHQ")
HEADER_LENGTH = HEADER.size
HEAD_LENGTH = Struct("<I")

MAX_ANSWER = 16 * 1024 * 1024
MAX_CHUNK = 128 * 1024
MAX_SMALL = 64 * 1024  # payload of Stream, Error, Usage and Health
INITIAL_CREDIT = 256 * 1024
MAX_BATCH = 1024
MAX_ALTERNATIVES = 128
MAX_NAME = 1024

REQUEST = 1
CREDIT = 2
CANCEL = 3
CHECK = 4
BATCH = 5
RESPONSE = 16
STREAM = 17
CHUNK = 18
END = 19
ERROR = 20
USAGE = 21
HEALTH = 22
METRICS = 23

JSON = 0
BYTES = 1
TEXT = 2
EVENTS = 3
EVENT = 4
CONTENT = 0x0F
HEAD = 0x10
BODY_STREAM = 0x20
OWN_CHECK = 1
ISOLATE = 1

ORIGIN_HANDLER = 0
ORIGIN_RAISED = 1
ORIGIN_UNSERIALISABLE = 2
ORIGIN_CANCELLED = 3

CLIENT_GONE = 1
DEADLINE = 2
SHUTDOWN = 3

EMBEDDINGS_TYPE = "application/vnd.omni.embeddings"

_pack = HEADER.pack


def frame(kind: int, flags: int, code: int, number: int, payload: bytes = b"") -> bytes:
    """A whole frame."""
    return _pack(len(payload), kind, flags, code, number) + payload


def json_response(number: int, payload: bytes) -> bytes:
    """The common answer: status 200, JSON, no head."""
    return _pack(len(payload), RESPONSE, JSON, 200, number) + payload


def chunk_header(number: int, flags: int, length: int) -> bytes:
    """The header of a chunk whose payload is sent behind it."""
    return _pack(length, CHUNK, flags, 0, number)


def end(number: int) -> bytes:
    """A stream is complete."""
    return _pack(0, END, 0, 0, number)


def error(
    number: int, origin: int, status: int, message: str, parameter: str | None = None, code: str | None = None
) -> bytes:
    """A request has failed. A long message is cut: at most twelve bytes of JSON per character stay within the bound.
    `parameter`: the path of the field that is wrong. `code`: the class of the mistake, where clients know it by one."""
    clean = message[: errors.MAX_MESSAGE].encode("utf-8", "backslashreplace").decode()
    body: dict[str, object] = {"message": clean}
    if parameter is not None:
        body["parameter"] = parameter[: errors.MAX_PARAMETER].encode("utf-8", "backslashreplace").decode()
    if code is not None:
        body["code"] = code
    return frame(ERROR, origin, status, number, _json.encode(body))


def health(number: int, problem: str | None) -> bytes:
    """The answer to a check: nothing, or what is wrong. The end of a long text is kept: there a traceback says it."""
    return frame(HEALTH, 0, 0, number, (problem or "")[-4096:].encode("utf-8", "replace"))


def metrics(series: list[dict[str, object]]) -> bytes:
    """The frame of an engine's own metrics."""
    return frame(METRICS, 0, 0, 0, _json.encode(series))


def usage(number: int, units: dict[str, float]) -> bytes:
    """The frame of the usage that a request has added up."""
    return frame(USAGE, 0, 0, number, _json.encode(units))
