"""Integration with the module `logging`: the logger of a model, and the destination of libraries' lines.

Not imported before something imports `logging`, which costs as much as starting Python. A library's line that no
handler of the model's takes goes to the log as `context.logger`'s do. For that the handler of last resort is replaced,
and none is put on the root logger: `logging.basicConfig` does nothing where the root logger has one.
"""

from __future__ import annotations

import logging

from omni import _log

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class Lines(logging.Handler):
    """Writes records to the model's log, whatever has become of `sys.stderr`."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            _log.report(_level(record.levelno), self.format(record))
        except Exception:
            self.handleError(record)


class ModelLogger(logging.Logger):
    """`context.logger`."""

    def __init__(self, model: str) -> None:
        super().__init__(f"omni.{model}", logging.INFO)
        self._model = model
        self.propagate = False
        self.addHandler(Lines())

    def __reduce__(self) -> tuple[type[ModelLogger], tuple[str]]:
        return ModelLogger, (self._model,)


def _level(number: int) -> str:
    """The next lower standard level: a library may have levels of its own."""
    for level in (logging.CRITICAL, logging.ERROR, logging.WARNING, logging.INFO):
        if number >= level:
            return logging.getLevelName(level)
    return "DEBUG"


def take_libraries(level: str) -> None:
    """Libraries' lines from `level` on go to the log, if nothing of the model's takes them."""
    last = Lines(_LEVELS.get(level, logging.INFO))
    last.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    logging.lastResort = last
    logging.getLogger().setLevel(last.level)
