"""The server's own metrics, as the node takes them. Pure, but for `Reporter`.

From Prometheus' text format: a colon in a name becomes an underscore, `model_name` is left out, for the node knows the
model, and of many series the first ones are kept, those of the Python process last.
"""

from __future__ import annotations

import asyncio
import re

from omni._engine import wire
from omni._engine.openai.http import ServerError, get

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from omni._engine.openai.server import Server

MOST = 1024 * 1024
"""Bytes of metrics that are read."""
MAX_SERIES = 256
MAX_LABELS = 8
MAX_TEXT = 128
_EVERY = 10.0
_DROPPED = ("model", "model_name", "instance", "served_model_name")
_OF_PROCESS = ("python_", "process_", "http_")
MAX_LINE = 4096
"""Characters of a line: longer ones are passed over."""
_SAMPLE = re.compile(r'([A-Za-z_:][\w:]*)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?\s+(\S+)', re.ASCII)
_LABEL = re.compile(r'([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"', re.ASCII)
_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
"""Names that the node takes (`protocol/engine/src/metrics.rs`)."""
_NO_METRICS = (404, 405, 501)
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


def series_of(text: str) -> list[dict[str, object]]:
    """The series of a text, at most so many as the node takes."""
    counters: set[str] = set()
    found: list[dict[str, object]] = []
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name, _, kind = line[7:].partition(" ")
            if kind.strip() == "counter":
                counters.add(name)
                counters.add(f"{name}_total")
            continue
        sample = None if line.startswith("#") or len(line) > MAX_LINE else _SAMPLE.match(line)
        made = None if sample is None else _series(sample[1], sample[2] or "", sample[3], sample[1] in counters)
        if made is not None:
            found.append(made)
    found.sort(key=lambda one: str(one["name"]).startswith(_OF_PROCESS))
    return _within(found[:MAX_SERIES])


def _series(name: str, labels: str, value: str, is_counter: bool) -> dict[str, object] | None:
    """A series; None if the node could not take it: another clock, an infinite value, a name that is too long."""
    try:
        number = float(value)
    except ValueError:
        return None
    clean = name.lower().replace(":", "_").lstrip("_")
    if is_counter and clean.endswith("_total"):
        clean = clean[: -len("_total")]
    pairs = {key.lower().lstrip("_"): _unescaped(told) for key, told in _LABEL.findall(labels)}
    kept = [[key, told] for key, told in pairs.items() if key not in _DROPPED]
    texts = [clean, *(text for pair in kept for text in pair)]
    if number - number != 0 or clean.endswith("_created") or len(kept) > MAX_LABELS:
        return None
    if not all(_NAME.match(known) for known in (clean, *(key for key, _ in kept))):
        return None
    if any(len(text.encode("utf-8", "replace")) > MAX_TEXT for text in texts):
        return None
    return {"name": clean, "kind": "counter" if is_counter else "gauge", "labels": kept, "value": number}


def _unescaped(text: str) -> str:
    return re.sub(r"\\.", lambda found: _ESCAPES.get(found[0], found[0]), text)


def _within(series: list[dict[str, object]]) -> list[dict[str, object]]:
    """As many as fit into a frame."""
    while len(wire.metrics(series)) > wire.MAX_SMALL:
        series = series[: len(series) * 3 // 4]
    return series


class Reporter:
    """Reports the server's metrics after it was used, every so often at most: an idle server is not asked."""

    def __init__(self, server: Server, send: Callable[[bytes], None]) -> None:
        self._server = server
        self._send = send
        self._used = asyncio.Event()

    def note_use(self) -> None:
        """The server has had a request."""
        self._used.set()

    async def run(self) -> None:
        """Reports until it is cancelled, or the server turns out to have no metrics."""
        while await self._report():
            await asyncio.sleep(_EVERY)
            await self._used.wait()
            self._used.clear()

    async def _report(self) -> bool:
        try:
            status, text = await get(self._server.address, "/metrics", MOST)
        except (OSError, ServerError):
            return True  # its end is found out elsewhere
        if status != 200:
            return status not in _NO_METRICS
        self._send(wire.metrics(series_of(text.decode("utf-8", "replace"))))
        return True
