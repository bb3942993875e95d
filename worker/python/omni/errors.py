"""Exceptions between a client and a handler.

Two families that must not be mixed up. `HTTPError` is an ordinary exception: raised by the package or by the handler,
it becomes the answer unless it is caught. `Cancelled` is a `BaseException`, so that a broad `except Exception` in a
handler or in a library cannot swallow the news that nobody waits for the answer any more.
"""

from __future__ import annotations

MAX_MESSAGE = 4096
"""The longest message of a failure, in characters."""
MAX_PARAMETER = 256
"""The longest path of a parameter, in characters."""


def check_status(status: object, first: int, whose: str) -> int:
    """A status as a whole number. `ValueError` where it is no number, or not from `first` to 599."""
    if isinstance(status, float) and status.is_integer():
        status = int(status)
    if not isinstance(status, int) or isinstance(status, bool):
        raise ValueError(f"{whose} status is a number from {first} to 599, not {status!r}")
    if not first <= status <= 599:
        raise ValueError(f"{whose} status is from {first} to 599, not {int(status)}")
    return int(status)


class HTTPError(Exception):
    """Becomes an answer with this status and message when it leaves the handler.

    A message that is no text, such as another exception, is written as `str` writes it; of a longer one 4096 characters
    are sent, and half a surrogate pair is sent as `\\ud800`.
    """

    def __init__(self, status: int, message: object) -> None:
        self.status = check_status(status, 400, "an error's")
        super().__init__(message)
        self.message = str(message)


class BadRequest(HTTPError):
    """The request is not what the model takes: status 400. Raised by `request.body.json` where the body is not JSON.

    `parameter` is the path of the field that is wrong, such as `messages[2].content`, for clients that show it.
    """

    def __init__(self, message: object, parameter: str | None = None) -> None:
        super().__init__(400, message)
        self.parameter = parameter


class ContextLengthExceeded(BadRequest):
    """Prompt and answer are longer than the model's context: status 400, in the form by which clients of each API know
    it (`context_length_exceeded`, "prompt is too long").

    The message has the numbers where they are known: `"2100 tokens, the model's context has 2048"`.
    """

    code = "context_length_exceeded"


class IncompleteBody(BadRequest):
    """A streamed body ended before its announced length: the client went away in the middle of its upload."""


class Unserialisable(TypeError):
    """A handler's result cannot be sent. The client sees a plain 500, the reason is in the log."""


class Cancelled(BaseException):
    """The request is cancelled: the client hung up, or the instance is going away.

    Raised inside a `def` handler, wherever it is (`async def` handlers see `asyncio.CancelledError`). Clean up and let
    it pass; a handler that goes on regardless costs the instance its place after `cancel-grace`.
    """


class DeadlineExceeded(Cancelled):
    """The request is cancelled because its deadline has passed."""
