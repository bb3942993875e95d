"""Requests that reach no handler, in the words of a node."""

from __future__ import annotations

MALFORMED = 5004
"""Code of the Workers AI API for a request that is not as it has to be."""
FAILED = 3043
"""Code of the Workers AI API for a model that failed."""


class Refused(Exception):
    """A request that reaches no handler. `code` is that of the Workers AI API, `name` that of the OpenAI API."""

    def __init__(
        self, status: int, code: int, message: str, parameter: str | None = None, name: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.parameter = parameter
        self.name = name


def invalid(parameter: str | None, message: str) -> Refused:
    """A value that a parameter cannot have."""
    return Refused(400, MALFORMED, message, parameter, "invalid_value")


def wrong_type(parameter: str | None, message: str) -> Refused:
    """A value of another type."""
    return Refused(400, MALFORMED, message, parameter, "invalid_type")


def missing(parameter: str) -> Refused:
    """A parameter that has to be there."""
    return Refused(400, MALFORMED, f"`{parameter}` is missing", parameter, "missing_required_parameter")


def unsupported(parameter: str, message: str) -> Refused:
    """A parameter that cannot be honoured."""
    return Refused(400, MALFORMED, message, parameter, "unsupported_parameter")


def unknown(parameter: str, message: str) -> Refused:
    """A parameter that the API does not have."""
    return Refused(400, MALFORMED, message, parameter, "unknown_parameter")


def unsendable(why: str) -> Refused:
    """An answer of the handler that is not what the request asks for."""
    return Refused(500, FAILED, f"the model's answer cannot be sent: {why}")
