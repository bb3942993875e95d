"""The model's log: lines on standard error, each with a level and the id of the request it belongs to.

    INFO [0198c5f2-…] loaded 3 pages

Used by `context.logger` and by the engine for tracebacks. The worker reads the lines, tags them with the instance and
limits their rate; here they are only bounded in length.
"""

from __future__ import annotations

import sys

from omni.context import request_now

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging

MAX_TEXT = 32 * 1024
"""The longest report, in characters: a traceback can quote a message of any size."""


def request_id() -> str:
    """The id of the request at hand, or a dash."""
    request = request_now.get()
    return "-" if request is None else request.id


def report(level: str, text: str) -> None:
    """Writes `text` to standard error, every line tagged. Never raises: there is nowhere left to complain to."""
    tag = f"{level} [{request_id()}] "
    lines = clip(text, MAX_TEXT).splitlines() or [""]
    try:
        sys.stderr.write("".join(f"{tag}{line}\n" for line in lines))
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        pass  # the model has closed or replaced standard error


def clip(text: str, limit: int) -> str:
    """`text`, without its middle where it is too long: the end of a traceback says most, its beginning next."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def traceback_of(error: BaseException, skip: int = 0) -> str:
    """The traceback as text, without its first `skip` frames, which are the engine's own."""
    try:
        import traceback
    except (ImportError, OSError):  # a model that has no descriptors left
        return f"{type(error).__name__}: {error} (and the traceback module cannot be loaded)"
    frames = error.__traceback__
    while skip and frames is not None:
        frames, skip = frames.tb_next, skip - 1
    return "".join(traceback.format_exception(type(error), error, frames)).rstrip("\n")


def logger(model: str) -> logging.Logger:
    """The logger of a model. Its lines go to standard error once, whatever the model does with the root logger."""
    import logging

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            try:
                report(record.levelname, self.format(record))
            except Exception:
                self.handleError(record)

    made = logging.getLogger(f"omni.{model}")
    if not made.handlers:
        made.addHandler(Lines())
        made.setLevel(logging.INFO)
        made.propagate = False
    return made
