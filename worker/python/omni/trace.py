"""The trace that a request belongs to: W3C Trace Context, as `context.trace`.

    reply = httpx.get(url, headers=context.trace.headers())

Spans of a handler's own belong to the node's span of the model:

    parent = TraceContextTextMapPropagator().extract(context.trace.headers())
    with tracer.start_as_current_span("search", context=parent):
        ...
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_DIGITS = frozenset("0123456789abcdef")
_LENGTH = 55
"""Characters of a `traceparent` of version 00."""
_LONGEST_STATE = 512
_MOST_MEMBERS = 32


class Trace:
    """The place of a request in a trace."""

    __slots__ = ("_flags", "sampled", "span_id", "state", "trace_id")

    def __init__(self, trace_id: str, span_id: str, flags: str | None = None, state: str | None = None) -> None:
        self.trace_id = trace_id
        """Id of the trace, 32 hexadecimal digits. The request's usage record has it, too."""
        self.span_id = span_id
        """Id of the span that the handler's own belong to, 16 hexadecimal digits: the node's span of the model where
        the request is recorded, else that of the client."""
        self._flags = flags
        self.sampled = flags is not None and int(flags, 16) & 1 == 1
        """True if the spans of this trace are recorded."""
        self.state = state
        """Value of `tracestate`, which systems of a trace pass on to each other."""

    def headers(self) -> dict[str, str]:
        """The headers of a request that the handler sends: `traceparent`, and `tracestate` where there is one. Empty
        for a request that came without a trace to a node without tracing: whoever gets it decides for itself."""
        if self._flags is None:
            return {}
        headers = {"traceparent": f"00-{self.trace_id}-{self.span_id}-{self._flags}"}
        if self.state is not None:
            headers["tracestate"] = self.state
        return headers

    def __repr__(self) -> str:
        return f"Trace(trace_id={self.trace_id!r}, span_id={self.span_id!r}, sampled={self.sampled})"


def of_headers(headers: Mapping[str, str]) -> Trace:
    """The trace of a request with these headers; without a valid `traceparent`, one of its own."""
    text = headers.get("traceparent")
    trace = None if text is None else _parsed(text, headers.get("tracestate"))
    return _begun() if trace is None else trace


def _begun() -> Trace:
    while True:
        digits = os.urandom(24).hex()
        if digits[:32].strip("0") and digits[32:].strip("0"):
            return Trace(digits[:32], digits[32:])


def _parsed(text: str, state: str | None) -> Trace | None:
    parts = text[:_LENGTH].split("-")
    if [len(part) for part in parts] != [2, 32, 16, 2] or not all(_DIGITS.issuperset(part) for part in parts):
        return None
    version, trace_id, span_id, flags = parts
    rest = text[_LENGTH:]
    if version == "ff" or (rest and (version == "00" or rest[0] != "-")):
        return None
    if not trace_id.strip("0") or not span_id.strip("0"):
        return None
    known = 3 if version == "00" else 1
    return Trace(trace_id, span_id, f"{int(flags, 16) & known:02x}", _state(state))


def _state(text: str | None) -> str | None:
    """A `tracestate` that can be passed on. A node has read it already."""
    members = [] if text is None else [member.strip(" \t") for member in text.split(",")]
    members = [member for member in members if member]
    state = ",".join(members)
    is_valid = state.isascii() and state.isprintable() and all(member.count("=") == 1 for member in members)
    return state if state and is_valid and len(members) <= _MOST_MEMBERS and len(state) <= _LONGEST_STATE else None
