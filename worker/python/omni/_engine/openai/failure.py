"""The server's errors as those of a handler. Pure.

A request that is wrong is the client's business: status 400 and the server's own message. A server that is full may be
asked again: 503. Anything else is a fault of the server or of its configuration: it is in the log, and the client gets
a plain 500.
"""

from __future__ import annotations

import re

from omni import _json
from omni.errors import BadRequest, ContextLengthExceeded, HTTPError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST = 4 * 1024 * 1024
"""Bytes of an error that are read: some servers repeat the request that they refuse."""
_SHOWN = 2000
"""Characters of a server's message that a client gets."""
_WRONG = (400, 413, 422)
_TOO_LONG = ("context_length_exceeded", "exceed_context_size_error")
"""Classes of OpenAI and llama.cpp."""
_SAYS_TOO_LONG = re.compile("maximum context length|model's context length|max_model_len|context size", re.IGNORECASE)
"""Words of vLLM and SGLang, whose errors have no class for it."""


def error_of(status: int, body: bytes) -> Exception:
    """The error of an answer with this status and body."""
    try:
        told = _json.decode(body)
    except (ValueError, RecursionError):
        told = None
    return error_of_value(status, told)


def error_without_stream(path: str, media: str, body: bytes) -> Exception:
    """The error of an answer of success that is no stream: the server's own, or that it has to stream."""
    try:
        told = _json.decode(body)
    except (ValueError, RecursionError):
        told = None
    if isinstance(told, dict) and told.get("error"):
        return error_of_value(200, told)
    came = f"has the content-type `{media[:_SHOWN]}`" if media else "has no content-type"
    return RuntimeError(
        f"the server has to answer `{path}` with a stream of events, since each request has `stream`: its answer "
        f"{came}, not `text/event-stream`"
    )


def _message_of(told: Any) -> str:
    """A server's words: a text, or the messages of the list that FastAPI has for a wrong request."""
    if isinstance(told, list):
        told = "; ".join(str(item["msg"]) for item in told if isinstance(item, dict) and "msg" in item)
    return told[:_SHOWN] if isinstance(told, str) else ""


def error_of_value(status: int, told: Any) -> Exception:
    """The error of an answer's value: `{"error": {…}}` as OpenAI has it, or the object alone."""
    error = told.get("error", told) if isinstance(told, dict) else told
    fields: dict[str, Any] = error if isinstance(error, dict) else {"message": error}
    message = _message_of(fields.get("message", fields.get("detail"))) or f"the server answered with status {status}"
    code, kind, parameter = fields.get("code"), fields.get("type"), fields.get("param")
    if isinstance(code, int) and not isinstance(code, bool) and 400 <= code <= 599:
        status = code  # llama.cpp and vLLM have the status there, in a stream too
    if code in _TOO_LONG or kind in _TOO_LONG or (status in _WRONG and _SAYS_TOO_LONG.search(message)):
        return ContextLengthExceeded(message)
    if status in _WRONG:
        return BadRequest(message, parameter if isinstance(parameter, str) else None)
    if status in (429, 503):
        return HTTPError(503, message)
    if status == 501:
        return HTTPError(501, message)
    return RuntimeError(f"the server answered with status {status}: {message}")
