"""What can go wrong between a client and a handler, as exceptions.

Two families that must not be mixed up. `HTTPError` is an ordinary exception: raised by the package or by the handler,
it becomes the answer when nobody catches it. `Cancelled` is a `BaseException`, so that a broad `except Exception` in a
handler or in a library cannot swallow the news that nobody waits for the answer any more.
"""


class HTTPError(Exception):
    """Becomes an answer with this status and message when it leaves the handler.

    A message that is no text, such as another exception, is written as `str` writes it.
    """

    def __init__(self, status: int, message: object) -> None:
        if not 400 <= status <= 599:
            raise ValueError(f"an error's status is from 400 to 599, not {status}")
        super().__init__(message)
        self.status = int(status)
        self.message = str(message)


class BadRequest(HTTPError):
    """The request is not what the model takes: status 400. Raised by `request.body.json` where the body is not JSON."""

    def __init__(self, message: object) -> None:
        super().__init__(400, message)


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
