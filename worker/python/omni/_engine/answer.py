"""Converts a handler's result to frames. Pure apart from the model's own code that JSON may call.

`whole` makes the single frame of most answers. A result that comes in pieces is returned as a `Stream`, which the
runner walks in its own way (for, async for) and asks for the frames of each piece.
"""

from __future__ import annotations

from types import AsyncGeneratorType, GeneratorType

from omni import _charset, _json
from omni._engine import wire
from omni.errors import Unserialisable, check_status
from omni.response import Response, headers_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_BYTES = (bytes, bytearray, memoryview)
_EVENT_STREAM = "text/event-stream"
_JSON = "application/json"
_LINES = frozenset(
    (
        "application/json-lines",
        "application/jsonl",
        "application/jsonlines",
        "application/ndjson",
        "application/x-jsonl",
        "application/x-jsonlines",
        "application/x-ndjson",
    )
)
"""Types whose streams are lines, each a JSON value."""
_NO_CONTENT = (204, 205, 304)
"""Statuses of answers that have no body."""


class Stream:
    """An answer in pieces: the frames around it. The first piece decides between events and bytes."""

    __slots__ = (
        "_content",
        "_head",
        "_length",
        "_number",
        "_own_events",
        "_pieces",
        "_status",
        "_text",
        "chunks",
        "opened",
    )

    finished = False
    """True once a piece was the last one."""

    def __init__(
        self,
        number: int,
        chunks: Any,
        status: int = 200,
        head: dict[str, Any] | None = None,
        content: int | None = None,
        length: int | None = None,
    ) -> None:
        self.chunks = chunks
        self._number = number
        self._status = status
        self._head = head or {}
        self._content = content
        self._length = length
        self._own_events = content == wire.EVENTS
        """True if pieces that are bytes are (parts of) events that the author has formatted."""
        self._pieces = 0
        self._text: Callable[[str], bytes] | None = None
        """Encoder of text that is not an event; made for the first such piece."""
        self.opened = False
        """True once the first frame was made."""

    @property
    def content(self) -> int | None:
        """The content of the pieces; None where the first one decides."""
        return self._content

    @property
    def media_type(self) -> str | None:
        """The media type, where there is one."""
        return self._head.get("media_type")

    def is_short(self, most: int) -> bool:
        """True if all pieces are there, and are a text of at most so many characters."""
        return False

    def opening(self) -> bytes:
        """The frame that begins the stream, once; afterwards nothing."""
        if self.opened:
            return b""
        content = wire.EVENTS if self._content is None else self._content
        if self._length is not None:
            self._head["length"] = self._length
        payload = _head(self._head) if self._head else b""
        self.opened = True
        return wire.frame(wire.STREAM, content, self._status, self._number, payload)

    def begins_with_nothing(self, flags: int, size: int) -> bool:
        """True if this first piece is an empty part of the model's own events: it marks the events as the model's."""
        return not size and flags == wire.BYTES and self._pieces == 1 and self._own_events

    def encode(self, item: object) -> tuple[int, bytes | memoryview]:
        """Flags and payload of one piece. Raises `Unserialisable`, which says which one."""
        self._pieces += 1
        try:
            return self._encoded(item)
        except Unserialisable as err:
            raise Unserialisable(f"piece {self._pieces} of the stream: {err}") from err.__cause__

    def _encoded(self, item: object) -> tuple[int, bytes | memoryview]:
        content = self._content
        if content is None:
            content = self._content = wire.BYTES if isinstance(item, _BYTES) else wire.EVENTS
        if content == wire.BYTES:
            return wire.BYTES, _view(item) if isinstance(item, _BYTES) else memoryview(self._part(item))
        if isinstance(item, str):
            flags, payload = wire.TEXT, _utf8(item)
        elif isinstance(item, _BYTES):
            if not self._own_events:
                raise Unserialisable(
                    "a stream that began with text or JSON cannot go on with bytes: to make events yourself, "
                    f'return Response.stream(…, media_type="{_EVENT_STREAM}")'
                )
            return wire.BYTES, _view(item)
        else:
            flags, payload = wire.JSON, _encode(item, "piece")
        if len(payload) > wire.MAX_CHUNK:
            raise Unserialisable(f"an event of {len(payload)} bytes, at most {wire.MAX_CHUNK} are allowed: yield parts")
        return flags, payload

    def _part(self, item: object) -> bytes:
        """A piece that is no bytes, in a stream of bytes."""
        media_type = self._head.get("media_type")
        if media_type is None:
            raise Unserialisable(f"a stream that began with bytes went on with {_name(item)}")
        if not isinstance(item, str):
            if _essence(media_type) not in _LINES:
                raise Unserialisable(
                    f"{_name(item)} in a stream of type {media_type!r}, whose pieces are bytes or text: JSON values "
                    f'are lines with media_type="application/x-ndjson", and events with "{_EVENT_STREAM}" or with none'
                )
            item = _encode(item, "piece").decode() + "\n"
        try:
            if self._text is None:
                self._text = _charset.encoder(_charset.named_by(media_type))
            return self._text(item)
        except ValueError as err:
            raise Unserialisable(str(err)) from None


def whole(number: int, result: object) -> bytes | Stream:
    """The last frame for a result, or a `Stream` when it comes in pieces. Raises `Unserialisable`."""
    kind = type(result)
    if kind is dict or kind is str or kind is list:
        return wire.json_response(number, _bounded(_encode(result)))
    if kind is GeneratorType or kind is AsyncGeneratorType:
        return Stream(number, result)
    if isinstance(result, Response):
        return _response(number, result)
    if isinstance(result, _BYTES):
        return _bytes(number, result, 200, {})
    if _comes_in_pieces(result):
        return Stream(number, result)
    if hasattr(result, "__await__"):
        if hasattr(result, "close"):
            result.close()
        raise Unserialisable("a `def` handler returned something to await: declare it `async def`")
    return wire.json_response(number, _bounded(_encode(result)))


def error_of(number: int, response: Response, instead: str) -> bytes:
    """The frame of a `Response.error`, where no other `Response` can be an answer."""
    if response.kind != "error":
        raise Unserialisable(f"a Response is no answer here, but for Response.error: {instead}")
    return wire.error(number, wire.ORIGIN_HANDLER, response.status, str(response.body))


def _response(number: int, response: Response) -> bytes | Stream:
    body, status = response.body, response.status
    if response.kind == "error":
        return wire.error(number, wire.ORIGIN_HANDLER, status, str(body))
    head: dict[str, Any] = {}
    essence, charset = None, _charset.UTF_8
    try:
        status = check_status(status, 200, "a")
        if response.headers or response.media_type is not None:
            headers, media_type = headers_of(response)
            if media_type is not None:
                head["media_type"], essence = media_type, _essence(media_type)
                charset = _charset.named_by(media_type) if ";" in media_type else charset
            if headers:
                head["headers"] = headers
        is_stream = response.kind == "stream" or _comes_in_pieces(body)
        if status in _NO_CONTENT:
            if is_stream or not (body is None or (isinstance(body, (str, *_BYTES)) and len(body) == 0)):
                raise ValueError(f"an answer with status {status} has no body: leave it out, or choose another status")
            return _bytes(number, b"", status, head)
        if charset != _charset.UTF_8 and (
            essence == _EVENT_STREAM or (essence == _JSON and not isinstance(body, _BYTES))
        ):
            raise ValueError(f"{essence} is written as UTF-8: leave out the charset {charset!r} of the media type")
        if is_stream:
            content = None
            if essence is not None:
                content = wire.EVENTS if essence == _EVENT_STREAM else wire.BYTES
            return Stream(number, body, status, head, content)
        if isinstance(body, str) and essence is not None:
            body = _charset.encoded(body, charset)
        elif essence not in (None, _JSON) and not isinstance(body, _BYTES):
            # A document with a type of its own is sent without the envelope.
            body = _bounded(_encode(body))
            if charset != _charset.UTF_8:
                body = _charset.encoded(body.decode(), charset)
    except ValueError as err:
        raise Unserialisable(str(err)) from None
    if isinstance(body, _BYTES):
        return _bytes(number, body, status, head)
    payload = _bounded(_encode(body))
    if not head:
        return wire.frame(wire.RESPONSE, wire.JSON, status, number, payload)
    return _with_head(number, wire.JSON, status, head, payload)


def _essence(media_type: str) -> str:
    """A media type without its parameters."""
    return media_type.partition(";")[0].strip().lower()


def _bytes(number: int, body: _json.Buffer, status: int, head: dict[str, Any]) -> bytes | Stream:
    view = memoryview(body)
    if view.nbytes > wire.MAX_CHUNK:
        return Stream(number, (body,), status, head, wire.BYTES, view.nbytes)
    if not head:
        return wire.frame(wire.RESPONSE, wire.BYTES, status, number, view.tobytes())
    return _with_head(number, wire.BYTES, status, head, view.tobytes())


def _with_head(number: int, content: int, status: int, head: dict[str, Any], payload: bytes) -> bytes:
    text = _head(head)
    rest = _bounded(wire.HEAD_LENGTH.pack(len(text)) + text + payload)
    return wire.frame(wire.RESPONSE, content | wire.HEAD, status, number, rest)


def _head(head: dict[str, Any]) -> bytes:
    text = _json.encode(head)
    if len(text) > wire.MAX_SMALL:
        raise Unserialisable(f"headers of {len(text)} bytes, at most {wire.MAX_SMALL} are allowed")
    return text


def _comes_in_pieces(value: object) -> bool:
    """Iterators do, lists do not: a handler that returns a list means one JSON array."""
    return hasattr(value, "__next__") or hasattr(value, "__aiter__")


def _encode(value: object, place: str = "result") -> bytes:
    try:
        return _json.encode(value, place)
    except RecursionError:
        raise Unserialisable(
            f"the {place} is nested too deeply, or contains itself, and cannot be written as JSON"
        ) from None
    except Exception as err:
        raise Unserialisable(f"the {place} cannot be written as JSON: {err}") from err


def _utf8(text: str) -> bytes:
    try:
        return str.encode(text)  # a subclass may encode in another way
    except UnicodeEncodeError as err:
        raise Unserialisable(f"the text cannot be written as UTF-8: {err.reason} at character {err.start}") from None


def _view(item: Any) -> memoryview:
    """The bytes of one piece, copied only where they do not lie in one row."""
    view = memoryview(item)
    return view.cast("B") if view.contiguous and view.nbytes else memoryview(view.tobytes())


def _bounded(payload: bytes) -> bytes:
    if len(payload) > wire.MAX_ANSWER:
        raise Unserialisable(
            f"an answer of {len(payload)} bytes, at most {wire.MAX_ANSWER} are allowed: stream it (yield its parts)"
        )
    return payload


def _name(value: object) -> str:
    return type(value).__qualname__
