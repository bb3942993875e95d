"""An answer that is more than a plain value: with a status, headers, a media type, or in pieces."""

from __future__ import annotations

from omni.errors import MAX_MESSAGE, check_status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Iterable, Mapping
    from typing import Any, Union

    Pairs = Union[Mapping[str, str], Iterable[tuple[str, str]]]


MAX_HEADERS = 64
"""The most headers that an answer may have beside the node's own."""
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_OF_THE_NODE = frozenset(
    (
        "connection",
        "content-length",
        "date",
        "http2-settings",
        "keep-alive",
        "proxy-authenticate",
        "proxy-connection",
        "server",
        "server-timing",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "www-authenticate",
        "x-request-id",
        "x-should-retry",
    )
)
"""Headers of the node or of the connection, as `gateway/ingress/src/response_headers.rs` lists them."""
_OF_OTHERS = frozenset(
    (
        "accept-ch",
        "alt-svc",
        "authentication-info",
        "clear-site-data",
        "critical-ch",
        "expect-ct",
        "nel",
        "origin-agent-cluster",
        "public-key-pins",
        "report-to",
        "service-worker-allowed",
        "set-cookie",
        "set-cookie2",
        "set-login",
        "strict-transport-security",
        "surrogate-control",
        "use-as-dictionary",
        "x-lighttpd-send-file",
        "x-reproxy-url",
        "x-sendfile",
    )
)
"""Headers that hold for everything behind the node's name, or that have a proxy before it send something else."""
_FAMILIES = ("proxy-", "sec-", "x-accel-", "x-envoy-", "x-litespeed-")
"""Prefixes of headers that steer proxies or browsers."""


def headers_of(response: Response) -> tuple[list[tuple[str, str]], str | None]:
    """The headers of an answer without its type, and its type. `ValueError` for what cannot be sent as it stands."""
    media_type, rest = response.media_type, []
    for name, value in response.headers:
        _check_header(name, value)
        lower = name.lower()
        if lower == "content-type":
            if media_type is not None and media_type != value:
                raise ValueError(f"the answer has two types: {media_type!r} and, among its headers, {value!r}")
            media_type = value
        elif lower in _OF_THE_NODE or lower.startswith("x-omni-"):
            raise ValueError(f"the header {name!r} is set by the node: leave it out")
        elif lower in _OF_OTHERS or (lower.startswith(_FAMILIES) and lower != "x-accel-buffering"):
            raise ValueError(f"the header {name!r} would hold for more than this answer: leave it out")
        else:
            rest.append((name, value))
    if media_type is not None:
        _check_type(media_type)
    if len(rest) > MAX_HEADERS:
        raise ValueError(f"the answer has {len(rest)} headers, at most {MAX_HEADERS} can be sent")
    return rest, media_type


def _check_header(name: object, value: object) -> None:
    if not isinstance(name, str):
        raise ValueError(f"a header's name is text, not {_kind(name)}: {ascii(name)[:80]}")
    if not name or not _TOKEN.issuperset(name):
        raise ValueError(f"{name[:80]!r} is not a name of a header")
    if not isinstance(value, str):
        raise ValueError(f"the header {name!r} has a value that is no text, but {_kind(value)}: {ascii(value)[:80]}")
    if any((char < " " and char != "\t") or char == "\x7f" for char in value):
        raise ValueError(f"the header {name!r} cannot hold a line break or another control character: {value[:80]!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the header {name!r} cannot be written as UTF-8: {value[:80]!r}") from None


def _check_type(media_type: object) -> None:
    if not isinstance(media_type, str):
        raise ValueError(f"a media type is text like 'text/plain', not {_kind(media_type)}: {ascii(media_type)[:80]}")
    _check_header("content-type", media_type)
    kind, slash, subtype = media_type.partition(";")[0].strip().partition("/")
    if not (kind and slash and subtype and _TOKEN.issuperset(kind + subtype)):
        raise ValueError(f"a media type is text like 'text/plain', not {media_type[:80]!r}")


def _pairs(headers: Any) -> list[tuple[Any, Any]]:
    """Headers as pairs; whole numbers, which have one spelling only, as text."""
    made = []
    for pair in headers.items() if hasattr(headers, "items") else headers:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ValueError(f"headers are a dict, or pairs of name and value, not {ascii(pair)[:80]}")
        name, value = pair
        made.append((name, str(value) if type(value) is int else value))
    return made


def _kind(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__qualname__}"


class Response:
    """An answer with a status, headers or a type of its own: what a handler may return instead of a plain value.

    `body` is anything a handler may also return by itself: text, a JSON value, a dataclass, a pydantic object, bytes.
    Text with a `media_type` is sent as that text, in the charset that it names; without one it is a JSON value. A JSON
    value with a type of its own, such as `application/problem+json`, is sent without the envelope. A `content-type`
    among the headers is the `media_type`. Anything that cannot be sent as it stands (a header, a type, a status that is
    no number) is a `ValueError`.
    """

    __slots__ = ("body", "headers", "kind", "media_type", "status")

    def __init__(
        self,
        body: object = None,
        status: int = 200,
        headers: Pairs = (),
        media_type: str | None = None,
    ) -> None:
        self.body = body
        self.status = check_status(status, 200, "a")
        self.headers = _pairs(headers)
        self.media_type = media_type
        self.kind = "whole"
        if self.headers or media_type is not None:
            headers_of(self)

    @classmethod
    def json(cls, value: object, status: int = 200, headers: Pairs = ()) -> Response:
        """A JSON value. The same as `Response(value, status, headers)`, and says so."""
        return cls(value, status, headers)

    @classmethod
    def stream(
        cls,
        chunks: Iterable[object] | AsyncIterable[object],
        status: int = 200,
        headers: Pairs = (),
        media_type: str | None = None,
    ) -> Response:
        """An answer in pieces. Text and JSON values become server-sent events; bytes are sent as they are, and so is
        text when `media_type` is something else than `text/event-stream`. With `application/x-ndjson` (or
        `application/jsonl`) other values are lines of JSON. With `text/event-stream`, pieces that are bytes are events
        as the author has made them, with `event:`, `id:`, `retry:` or a comment."""
        answer = cls(chunks, status, headers, media_type)
        answer.kind = "stream"
        return answer

    @classmethod
    def image(cls, image: Any, format: str = "PNG", status: int = 200, headers: Pairs = ()) -> Response:
        """An image: a Pillow image, written in this format, or the bytes of a PNG, JPEG, GIF or WebP file."""
        from omni import media

        data, media_type = media.image_file(image, format)
        return cls(data, status, headers, media_type)

    @classmethod
    def audio(cls, data: bytes, media_type: str | None = None, status: int = 200, headers: Pairs = ()) -> Response:
        """An audio file. `media_type` is needed where the bytes do not say it: WAV, FLAC, Ogg, MP3 and AAC do."""
        from omni import media

        kind = media_type or media.type_of(bytes(data[:16]))
        if kind is None:
            raise ValueError("the bytes are no WAV, FLAC, Ogg, MP3 or AAC file: name their media_type")
        return cls(data, status, headers, kind)

    @classmethod
    def error(cls, status: int, message: str) -> Response:
        """A failure for the client to read, with a status from 400 to 599 and at most 4096 characters of text."""
        status = check_status(status, 400, "an error's")
        if not isinstance(message, str):
            raise ValueError(
                f"an error's message is text, not {_kind(message)}: to answer with a value, return "
                f"Response(value, status={status})"
            )
        if len(message) > MAX_MESSAGE:
            raise ValueError(f"an error's message has {len(message)} characters, at most {MAX_MESSAGE} can be sent")
        try:
            message.encode()
        except UnicodeEncodeError as err:
            found = ascii(message[err.start])
            raise ValueError(f"an error's message cannot be UTF-8: character {err.start} is {found}") from None
        answer = cls(message, status)
        answer.kind = "error"
        return answer

    def __repr__(self) -> str:
        return f"Response({self.kind}, status={self.status}, body={self.body!r})"
