"""From a handler's failure to the last frame of its request, and to the log. Used by all three runners."""

from __future__ import annotations

from types import GeneratorType

from omni import _log
from omni._engine import cancel, wire
from omni.errors import Cancelled, ContextLengthExceeded, HTTPError, Unserialisable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OURS = __file__.rpartition("/")[0].rpartition("/")[0] + "/"


def failed(number: int, error: BaseException, reason: int | None, skip: int) -> bytes:
    """The last frame after `error`; `reason` says why the request is cancelled, if it is, and `skip` how many frames
    of the traceback are the engine's."""
    return failed_batch([number], error, reason, skip)


def failed_batch(numbers: list[int], error: BaseException, reason: int | None, skip: int) -> bytes:
    """The last frames of these requests; one report in the log."""
    if reason is not None:
        if reason == wire.DEADLINE:
            log_position(error)
        if not isinstance(error, (Cancelled, GeneratorExit)) and type(error).__name__ != "CancelledError":
            _log.report("ERROR", "raised after it was cancelled\n" + _log.traceback_of(error, skip))
        return b"".join(cancel.frame(number, reason) for number in numbers)
    parameter = code = None
    if isinstance(error, HTTPError) and _is_standard(error):
        origin, status, message = wire.ORIGIN_HANDLER, error.status, error.message
        parameter = _parameter(error)
        code = ContextLengthExceeded.code if isinstance(error, ContextLengthExceeded) else None
    elif isinstance(error, Unserialisable):
        _log.report("ERROR", f"the result cannot be sent: {error}")
        origin, status, message = wire.ORIGIN_UNSERIALISABLE, 500, str(error)
    else:
        _log.report("ERROR", "the handler raised\n" + _log.traceback_of(error, skip))
        origin, status, message = wire.ORIGIN_RAISED, 500, f"{type(error).__name__}: {_text(error)}"
    return b"".join(wire.error(number, origin, status, message, parameter, code) for number in numbers)


def log_position(error: BaseException) -> None:
    """Logs the handler's stack at the moment its deadline passed, if it had begun."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OURS):
        frames = frames.tb_next
    is_cancellation = isinstance(error, Cancelled) or type(error).__name__ == "CancelledError"
    if frames is not None and is_cancellation:
        where = _log.traceback_of(error.with_traceback(frames))
        _log.report("WARNING", f"the deadline passed while the handler was here\n{where}")


def _is_standard(error: HTTPError) -> bool:
    """True if status and message are as `HTTPError` sets them: a subclass of the model's may set them otherwise, or
    not.
    """
    status, message = getattr(error, "status", None), getattr(error, "message", None)
    return type(status) is int and 400 <= status <= 599 and type(message) is str


def _parameter(error: HTTPError) -> str | None:
    """The path of the field that a request has wrong, where the error names one."""
    parameter = getattr(error, "parameter", None)
    return parameter if type(parameter) is str else None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(no text: its __str__ raised)"


def close(source: Any, error: BaseException | None) -> None:
    """Ends a generator that will not be walked on. A cancellation is thrown into it, where its author expects it."""
    if not isinstance(source, GeneratorType) or source.gi_frame is None:
        return
    try:
        if isinstance(error, Cancelled):
            source.throw(error)
        source.close()
    except BaseException as err:
        if err is not error and not isinstance(err, StopIteration):
            log_failure(err)


def log_failure(error: BaseException) -> None:
    """Logs what a generator raised while it was closed; its request has its last frame for another reason."""
    _log.report("ERROR", "the generator raised while it was closed\n" + _log.traceback_of(error, skip=1))
