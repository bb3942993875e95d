"""Errors in the form of the OpenAI API: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

from omni import _json
from omni._run import answer

_NAMES = {5007: "model_not_found", 7000: "unknown_url", 7001: "method_not_supported"}
"""Codes by those of the Workers AI API."""
_CLASSES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES = {
    408: "timeout",
    413: "request_too_large",
    429: "rate_limit_exceeded",
    431: "request_too_large",
    503: "service_unavailable",
    504: "timeout",
}


class Form(answer.Form):
    """The form of this API's errors."""

    def failure(self, status: int, code: int, message: str, parameter: str | None, name: str | None) -> bytes:
        """The body of an error. `code` is that of the Workers AI API, `name` the one of this API, if it is known."""
        if name is None and (status in (404, 405) or code in _NAMES):
            name = _NAMES.get(code)
        if name == "model_not_found":
            parameter = "model"
        return _error(status, message, parameter, name or _code(status))

    def broken(self, status: int, message: str) -> bytes:
        """The event of a stream that failed."""
        return _error(status, message, None, _code(status))


def _error(status: int, message: str, parameter: str | None, code: str | None) -> bytes:
    kind = _CLASSES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return _json.encode({"error": {"message": message, "type": kind, "param": parameter, "code": code}})


def _code(status: int) -> str | None:
    return _CODES.get(status, "server_error" if status >= 500 else None)
