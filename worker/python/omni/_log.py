"""The model's log: lines on standard error, each with a level and the id of the request it belongs to.

    INFO [0198c5f2-…] loaded 3 pages

Used by `context.logger` and by the engine for tracebacks. In an engine the lines take a descriptor of their own, which
nothing that a model does with `sys.stderr` or with descriptor 2 can redirect. The worker reads the lines, tags them
with the instance and limits their rate; here they are only bounded in length.
"""

from __future__ import annotations

import os
import sys

from omni.context import request_now

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

MAX_TEXT = 32 * 1024
"""The longest report, in characters: a traceback can quote a message of any size."""

MAX_LINE = 8 * 1024 - 8
"""Bytes of the longest line that the worker takes whole (`worker/instance/src/journal/mod.rs`), less the bytes of the
longest name of a level. Text behind the cut would have no mark of its request."""
_WIDEST = 6  # bytes of a character: four of UTF-8, six of half a surrogate pair that is written escaped
_OUT_OF_THE_WAY = 100
_AT_ONCE = 4096  # PIPE_BUF: writes up to this size are atomic

_descriptor: int | None = None
_end_line: Callable[[], None] | None = None
"""Completes a line that the model has begun on standard error."""


def keep_descriptor() -> int:
    """Makes a copy of descriptor 2 for the log, or makes it again in a process that has another one."""
    global _descriptor
    if _descriptor is None:
        import fcntl

        _descriptor = fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY)
    else:
        os.dup2(2, _descriptor, inheritable=False)
    return _descriptor


def before_a_report(end_line: Callable[[], None]) -> None:
    """Sets the function that completes a line begun on standard error."""
    global _end_line
    _end_line = end_line


def request_id() -> str:
    """The id of the request at hand, or a dash."""
    request = request_now.get()
    return "-" if request is None else request.id


def report(level: str, text: str) -> None:
    """Writes `text` to the log, every line tagged. Never raises: there is no other place to report an error."""
    tag = f"{level} [{request_id()}] "
    whole = clip(text, MAX_TEXT).splitlines() or [""]
    lines = [f"{tag}{part}\n" for line in whole for part in fold(line, MAX_LINE - len(tag))]
    try:
        if _descriptor is None:
            sys.stderr.write("".join(lines))
            sys.stderr.flush()
            return
        if _end_line is not None:
            _end_line()
        _write([line.encode("utf-8", "backslashreplace") for line in lines], _descriptor)
    except (AttributeError, OSError, ValueError):
        pass  # the model has closed or replaced standard error


def most_bytes(text: str) -> int:
    """The most bytes that a text takes when it is written."""
    return len(text) if text.isascii() else _WIDEST * len(text)


def fold(line: str, width: int, begun: int = 0) -> list[str]:
    """A line in parts of at most `width` bytes; `begun` bytes of the first are written already."""
    if most_bytes(line) <= width - begun:
        return [line]
    unit = 1 if line.isascii() else _WIDEST
    at, parts = max(width - begun, 0) // unit, []
    parts.append(line[:at])
    while at < len(line):
        parts.append(line[at : at + width // unit])
        at += width // unit
    return parts


def _write(lines: list[bytes], descriptor: int) -> None:
    """Writes lines, as many at once as stay atomic among other writers."""
    piece = b""
    for line in lines:
        if piece and len(piece) + len(line) > _AT_ONCE:
            _write_all(piece, descriptor)
            piece = b""
        piece += line
    _write_all(piece, descriptor)


def _write_all(data: bytes, descriptor: int) -> None:
    while data:
        try:
            written = os.write(descriptor, data)
        except OSError:  # a model has closed all descriptors that it does not know
            if descriptor == 2:
                raise
            descriptor = 2
            continue
        data = data[written:]


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
    """The logger of a model. `logging` does not know it, so no configuration of `logging` silences it."""
    import logging  # noqa: F401  before the next one, whose import follows from it in an engine

    from omni import _logging

    return _logging.ModelLogger(model)
