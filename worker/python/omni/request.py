"""The request as a handler sees it, and as an author's test makes it.

The engine hands in a subclass that reads its fields from the wire when they are first asked for
(`omni._engine.request`); everything a handler may use is here.
"""

from __future__ import annotations

import io
from collections.abc import Mapping

from omni import _json
from omni.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    import builtins
    from collections.abc import AsyncIterator, Iterable, Iterator
    from typing import Any, BinaryIO

_CHUNK = 1 << 20
_ABSENT: Any = object()


class Headers(Mapping[str, str]):
    """Request headers. Names are compared without regard to case and listed in lower case."""

    __slots__ = ("_values",)

    def __init__(self, items: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> None:
        pairs = items.items() if isinstance(items, Mapping) else items
        self._values = {name.lower(): value for name, value in pairs}

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Headers({self._values!r})"


class Head:
    """All of a request that is not its body."""

    __slots__ = (
        "body_handed",
        "body_length",
        "deadline",
        "headers",
        "id",
        "kind",
        "method",
        "parameters",
        "session",
    )

    def __init__(
        self,
        id: str,
        method: str,
        headers: Headers,
        deadline: float | None,
        session: str | None,
        body_length: int | None = None,
        body_handed: bool = False,
        kind: str | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        self.id = id
        self.method = method
        self.headers = headers
        self.deadline = deadline
        self.session = session
        self.body_length = body_length
        self.body_handed = body_handed
        self.kind = kind
        self.parameters = parameters


class BodyStream:
    """The pieces of a body in order, for `for` and for `async for`. It can be walked once."""

    def __init__(self, whole: bytes) -> None:
        self._whole = whole

    def __iter__(self) -> Iterator[bytes]:
        for at in range(0, len(self._whole), _CHUNK):
            yield self._whole[at : at + _CHUNK]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece


class Body:
    """A request's body. `bytes`, `text` and `json` hold it as a whole; `stream()` and `file()` take it in pieces."""

    __slots__ = ("_json", "_raw")

    def __init__(self, raw: _json.Buffer) -> None:
        self._raw = raw
        self._json: Any = _ABSENT

    @property
    def bytes(self) -> bytes:
        """The body as it came."""
        raw = self._raw
        if type(raw) is not bytes:
            raw = self._raw = bytes(raw)
        return raw

    @property
    def text(self) -> str:
        """The body as UTF-8 text. Raises `BadRequest` when it is none."""
        try:
            return str(self._raw, "utf-8")
        except UnicodeDecodeError as err:
            raise BadRequest(f"the body is not UTF-8 text: {err}") from None

    @property
    def json(self) -> Any:
        """The body as a JSON value. Raises `BadRequest` when it is none."""
        if self._json is _ABSENT:
            try:
                self._json = _json.decode(self._raw)
            except ValueError as err:
                what = "the body is not JSON" if len(self._raw) else "the body is empty, JSON was expected"
                raise BadRequest(f"{what}: {err}") from None
            except RecursionError:
                raise BadRequest("the body is not usable JSON: nested too deeply") from None
        return self._json

    def stream(self) -> BodyStream:
        """The body in pieces of at most 1 MiB, for `for` or, in an `async def` handler, for `async for`."""
        return BodyStream(self.bytes)

    def file(self) -> BinaryIO:
        """The body as a binary file, to be read once and forwards: for what takes one, as `shutil.copyfileobj`."""
        return io.BytesIO(self.bytes)

    def image(self, field: str = "image") -> Any:
        """The body as a Pillow image, which the model has in its requirements. The body is the image's file, or a JSON
        object with a `field` that has it as a data URL, base64 or a list of byte values. Raises `BadRequest`."""
        from omni import media

        return media.open_image(self._embedded(field))

    def audio(self, field: str = "audio") -> builtins.bytes:
        """The body as an audio file: the body itself, or a field of it, as with `image`. Raises `BadRequest`."""
        return self._embedded(field)

    def _embedded(self, field: str) -> builtins.bytes:
        from omni import media

        data = self.bytes
        if data.lstrip()[:1] != b"{":
            return data
        value = self.json.get(field)
        if value is None:
            raise BadRequest(f"`{field}` is missing: a file is needed", field)
        return media.file_of(value, field)


class Request:
    """A request. In a test: `Request(json={"text": "hi"})`, or with `text=` or `body=`."""

    __slots__ = ("_body", "_known")

    def __init__(
        self,
        *,
        json: Any = _ABSENT,
        text: str | None = None,
        body: _json.Buffer | None = None,
        headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        method: str = "POST",
        id: str = "test",
        session: str | None = None,
        deadline: float | None = None,
        kind: str | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        if (json is not _ABSENT) + (text is not None) + (body is not None) > 1:
            raise TypeError("a request has one body: give json, text or body")
        if json is not _ABSENT:
            body = _json.encode(json)
        elif text is not None:
            body = text.encode()
        self._body: Body | None = Body(bytes(body or b""))
        self._known: Head | None = Head(
            id, method, Headers(headers), deadline, session, kind=kind, parameters=parameters
        )

    def _head(self) -> Head:
        assert self._known is not None
        return self._known

    @property
    def id(self) -> str:
        """The id that the client sees as `x-request-id` and that tags the log."""
        return self._head().id

    @property
    def method(self) -> str:
        """The HTTP method."""
        return self._head().method

    @property
    def headers(self) -> Headers:
        """The client's headers, without credentials. Several of one name are joined by a comma."""
        return self._head().headers

    @property
    def deadline(self) -> float | None:
        """When the answer is due, on the clock of `time.monotonic()`; None in a test that gives none."""
        return self._head().deadline

    @property
    def session(self) -> str | None:
        """The client's `x-session-affinity`: requests with the same value belong together."""
        return self._head().session

    @property
    def kind(self) -> str | None:
        """Kind of the request, where the node has read it: `"text-generation"`, `"embeddings"` and so on."""
        return self._head().kind

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters beside a body that is a file: the fields of the client's form."""
        return self._head().parameters or {}

    @property
    def cancelled(self) -> bool:
        """True once the client no longer waits."""
        return False

    @property
    def counts_tokens(self) -> bool:
        """True if only the tokens of the prompt are asked for: such a request goes to `count_tokens`."""
        return self.kind == "count-tokens"

    @property
    def body(self) -> Body:
        """The body."""
        assert self._body is not None
        return self._body
