"""A model's own lines: what it prints carries the id of its request, and so does what its libraries log.

Standard output and error stay text streams over the same descriptors. A line that is printed while a thread or task
works on a request begins with `INFO [id] `; a line is written when it is whole, so that lines of several requests do
not mix, or when it is flushed. A carriage return ends a line, too: progress bars draw a line again and again.
"""

from __future__ import annotations

import faulthandler
import io
import os
import re
import sys

from omni import _log
from omni._engine import after_import, siblings, stacks
from omni.context import request_now

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from omni.request import Request

_LONGEST = 8 * 1024
"""Characters of a line that is kept back until it is whole."""
_LINE = re.compile("[^\r\n]*[\r\n]|[^\r\n]+")

_PRIORITIES = {**dict.fromkeys("0123", "ERROR"), "4": "WARNING", **dict.fromkeys("567", "INFO")}
"""Levels of the marks `<0>` to `<7>`, by which a daemon's line says its priority."""

_outputs: list[Output] = []
_LEVEL = "OMNI_LOG_LIBRARIES"
"""The variable that names the level from which on libraries' lines are wanted; the node sets it."""


class Output(io.TextIOWrapper):
    """Standard output or standard error of a model."""

    def __init__(self, stream: Any) -> None:
        encoding, errors = stream.encoding, errors_of(stream)
        super().__init__(stream.detach(), encoding, errors, line_buffering=True)
        self._begun: dict[str, str] = {}
        """Beginnings of lines, by request."""
        self._open: str | None = None
        """The request whose line was written without its end."""
        self._column = 0
        """The most bytes that this line has so far."""

    def write(self, text: str) -> int:
        request = request_now.get()
        if request is None:
            self.end_line()
            return super().write(text)
        whole = self._begun.pop(request.id, "") + text
        end = max(whole.rfind("\n"), whole.rfind("\r")) + 1
        if len(whole) - end > _LONGEST:
            end = len(whole)
        if end:
            self._put(request.id, whole[:end])
        if whole[end:]:
            self._begun[request.id] = whole[end:]
        return len(text)

    def flush(self) -> None:
        request = request_now.get() if self._begun else None
        if request is not None:
            self._put(request.id, self._begun.pop(request.id, ""))
        super().flush()

    def end_line(self) -> None:
        """Ends a line that was written without its end."""
        if self._open is not None:
            self._open = None
            super().write("\n")

    def ended(self, request: str) -> None:
        """Completes the line that an ended request has begun."""
        begun = self._begun.pop(request, "")
        if begun:
            self._put(request, begun)
        if self._open == request:
            self.end_line()

    def _put(self, request: str, text: str) -> None:
        if not text:
            return
        if self._open != request:
            self.end_line()
        tag, goes_on = f"INFO [{request}] ", self._open == request
        body = text.replace("\r\n", "\n")
        first = "" if goes_on else body[: len(body) - len(body.lstrip("\r"))]
        body = body[len(first) :]
        self._open = None if text.endswith(("\n", "\r")) else request
        if body:
            body = self._folded(body, goes_on, len(tag))
            tagged = body[:-1].replace("\n", f"\n{tag}").replace("\r", f"\r{tag}") + body[-1]
            body = tagged if goes_on else tag + tagged
            if "<" in body:
                for priority, level in _PRIORITIES.items():
                    body = body.replace(f"{tag}<{priority}>", f"{level} [{request}] ")
        super().write(first + body)

    def _folded(self, body: str, goes_on: bool, tag: int) -> str:
        """The text with line ends where a line would be longer than the worker takes, its mark included."""
        begun = self._column if goes_on else 0
        size = begun + _log.most_bytes(body)
        if size <= _log.MAX_LINE - tag:
            last = max(body.rfind("\n"), body.rfind("\r")) + 1
            self._column = _log.most_bytes(body[last:]) if last else size
            return body
        parts = []
        for line in _LINE.findall(body):
            folded = _log.fold(line.rstrip("\r\n"), _log.MAX_LINE - tag, begun)
            parts.append("\n".join(folded) + line[len(line.rstrip("\r\n")) :])
            self._column = _log.most_bytes(folded[-1]) + (begun if len(folded) == 1 else 0)
            begun = 0
        return "".join(parts)


def errors_of(stream: Any) -> str:
    """How a standard stream writes what its encoding has not: escaped, unless PYTHONIOENCODING says how."""
    errors: str = stream.errors
    said = os.environ.get("PYTHONIOENCODING", "").partition(":")[2]
    return errors if said or errors not in ("strict", "surrogateescape") else "backslashreplace"


def take() -> None:
    """Makes the process's standard streams, its log and its libraries' lines what they are in an engine."""
    descriptor = _log.keep_descriptor()
    faulthandler.enable(descriptor)
    stacks.walk(descriptor)
    for name in ("stdout", "stderr"):
        output = Output(getattr(sys, name))
        setattr(sys, name, output)
        setattr(sys, f"__{name}__", output)
        _outputs.append(output)
    _log.before_a_report(_outputs[-1].end_line)
    # A model may have a file of that name.
    after_import.follow("logging", lambda _: _take_libraries(), siblings.LIBRARY)


def begin_anew() -> None:
    """Adopts the new descriptors 1 and 2 after a fork."""
    _log.keep_descriptor()


def answer_for_stacks() -> None:
    """From now on, threads come and go, and the stacks of all are written whenever the worker asks."""
    stacks.begin(_log.keep_descriptor())


def ended(request: Request) -> None:
    """Called at a request's end. Its id is needed only where a line has begun: the rest of its head is not parsed."""
    for output in _outputs:
        if output._begun or output._open is not None:
            output.ended(request.id)


def _take_libraries() -> None:
    from omni import _logging

    _logging.take_libraries(os.environ.get(_LEVEL, "info"))
