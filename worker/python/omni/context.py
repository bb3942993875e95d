"""The context of a request: the instance, a logger, directories, usage, cancellation.

The engine makes one per request; `Context.inactive()` makes one for a test or a script.
"""

from __future__ import annotations

from contextvars import ContextVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Protocol

    from omni.request import Request
    from omni.trace import Trace

    class Cancellation(Protocol):
        """Where a context asks whether its request is cancelled."""

        def reason(self, number: int) -> int | None: ...


MAX_UNITS = 16
"""The most units of usage one request may report."""
MAX_UNIT = 32
"""The longest name of a unit, in characters."""

request_now: ContextVar[Request | None] = ContextVar("omni_request", default=None)
"""The request that this thread or task works on; the log takes its id from here, and only when it writes a line."""


class Instance:
    """The part of the context that all requests of an instance share."""

    __slots__ = ("cache_dir", "device", "logger", "model", "name", "weights_dir")

    def __init__(self, model: str, name: str, cache_dir: str, weights_dir: str | None, device: str) -> None:
        self.model = model
        self.name = name
        self.cache_dir = cache_dir
        self.weights_dir = weights_dir
        self.device = device
        self.logger: logging.Logger | None = None


class Context:
    """The world around one request. In `setup`, `healthcheck` and `teardown`: around the instance."""

    __slots__ = ("__weakref__", "_cancellation", "_instance", "_number", "_request", "_trace", "_usage")

    def __init__(
        self,
        instance: Instance,
        request: Request | None = None,
        cancellation: Cancellation | None = None,
        number: int = 0,
    ) -> None:
        self._instance = instance
        self._request = request
        self._cancellation = cancellation
        self._number = number
        self._usage: dict[str, float] | None = None
        self._trace: Trace | None = None

    @classmethod
    def inactive(
        cls,
        *,
        model: str = "test",
        cache_dir: str | None = None,
        weights_dir: str | None = None,
        device: str = "cpu",
    ) -> Context:
        """A context outside a node, for tests: never cancelled, with a temporary cache directory."""
        return cls(Instance(model, "inactive", cache_dir or "", weights_dir, device))

    @property
    def model(self) -> str:
        """The model's name."""
        return self._instance.model

    @property
    def instance(self) -> str:
        """The instance's id; another one after each start."""
        return self._instance.name

    @property
    def device(self) -> str:
        """`"cpu"`, or `"cuda:0"` for a model with a GPU."""
        return self._instance.device

    @property
    def cache_dir(self) -> Path:
        """A writable directory that outlives the instance and is shared by the model's instances."""
        from pathlib import Path

        if not self._instance.cache_dir:
            import shutil
            import tempfile
            import weakref

            made = self._instance.cache_dir = tempfile.mkdtemp(prefix="omni-cache-")
            weakref.finalize(self, shutil.rmtree, made, True)
        return Path(self._instance.cache_dir)

    @property
    def weights_dir(self) -> Path | None:
        """The directory of the weights that the manifest names, if it names some."""
        from pathlib import Path

        return None if self._instance.weights_dir is None else Path(self._instance.weights_dir)

    @property
    def logger(self) -> logging.Logger:
        """Writes lines to the model's log, each with its level and the id of the request at hand."""
        logger = self._instance.logger
        if logger is None:
            from omni import _log

            logger = self._instance.logger = _log.logger(self._instance.model)
        return logger

    @property
    def cancelled(self) -> bool:
        """True once nobody waits for this request's answer any more."""
        return self._cancellation is not None and self._cancellation.reason(self._number) is not None

    @property
    def deadline(self) -> float | None:
        """When the answer is due, on the clock of `time.monotonic()`; None where there is no deadline."""
        return None if self._request is None else self._request.deadline

    @property
    def trace(self) -> Trace:
        """The trace that the request belongs to, by its `traceparent`; of a batch, that of its first member."""
        trace = self._trace
        if trace is None:
            from omni.trace import of_headers

            trace = self._trace = of_headers({} if self._request is None else self._request.headers)
        return trace

    @property
    def metrics(self) -> Mapping[str, float]:
        """Usage added up so far for this request."""
        return dict(self._usage or {})

    def usage(self, **units: float) -> None:
        """Adds to what this request has used: `context.usage(tokens=12, audio_seconds=3.5)`.

        The node adds it to the model's usage when the request ends, however it ends. Numbers are finite and not
        negative; one request reports at most sixteen units. A unit's name is a metric's label: at most 32 letters,
        digits and underscores of ASCII.
        """
        total = self._usage
        if total is None:
            total = self._usage = {}
        for unit, amount in units.items():
            number = float(amount)
            if len(unit) > MAX_UNIT or not (unit.isascii() and unit.replace("_", "").isalnum()):
                raise ValueError(
                    f"a unit of usage is named by at most {MAX_UNIT} ASCII letters, digits and underscores, "
                    f"not {unit[:MAX_UNIT]!r}"
                )
            if not 0 <= number < float("inf"):
                raise ValueError(f"usage of {unit} must be a finite number from 0 on, not {amount!r}")
            if unit not in total and len(total) == MAX_UNITS:
                raise ValueError(f"usage of more than {MAX_UNITS} units; {unit} is one too many")
            total[unit] = total.get(unit, 0) + (int(number) if number.is_integer() else number)
