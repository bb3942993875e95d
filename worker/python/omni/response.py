"""An answer that is more than a plain value: with a status, headers, a media type, or in pieces."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Iterable, Mapping
    from typing import Union

    Pairs = Union[Mapping[str, str], Iterable[tuple[str, str]]]


class Response:
    """What a handler may return instead of a plain value.

    `body` is what a handler may also return by itself: text, a JSON value, a dataclass, a pydantic object, bytes. Text
    with a `media_type` of its own is sent as that text; without one it is a JSON value.
    """

    __slots__ = ("body", "headers", "kind", "media_type", "status")

    def __init__(
        self,
        body: object = None,
        status: int = 200,
        headers: Pairs = (),
        media_type: str | None = None,
    ) -> None:
        if not 200 <= status <= 599:
            raise ValueError(f"a status is from 200 to 599, not {status}")
        pairs = headers.items() if hasattr(headers, "items") else headers
        self.body = body
        self.status = status
        self.headers = [(str(name), str(value)) for name, value in pairs]
        self.media_type = media_type
        self.kind = "whole"
        for text in (media_type or "", *(part for pair in self.headers for part in pair)):
            if "\r" in text or "\n" in text or "\0" in text:
                raise ValueError(f"a header cannot hold a line break: {text[:80]!r}")

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
        text when `media_type` is something else than `text/event-stream`."""
        answer = cls(chunks, status, headers, media_type)
        answer.kind = "stream"
        return answer

    @classmethod
    def error(cls, status: int, message: str) -> Response:
        """A failure for the client to read, with a status from 400 to 599."""
        if not 400 <= status <= 599:
            raise ValueError(f"an error's status is from 400 to 599, not {status}")
        answer = cls(str(message), status)
        answer.kind = "error"
        return answer

    def __repr__(self) -> str:
        return f"Response({self.kind}, status={self.status}, body={self.body!r})"
