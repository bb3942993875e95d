"""Loads a model: import, entry point, setup, healthcheck. Each step that fails says so by name."""

from __future__ import annotations

import importlib
import os
import sys

from omni import _log
from omni._engine import counting, siblings
from omni._engine.entry import BATCH, Entry, takes
from omni.context import Context, Instance

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

_COROUTINE = 0x80  # inspect.CO_COROUTINE; importing inspect would cost as much as starting Python
_ASYNC_GENERATOR = 0x200
_USUAL = "handle_request"
_COUNT = "count_tokens"
_UNWELL = "healthcheck returned False"


class LoadError(Exception):
    """The model cannot be served. `permanent`: trying again with the same content cannot help."""

    def __init__(self, phase: str, message: str, permanent: bool) -> None:
        super().__init__(message)
        self.phase = phase
        self.message = message
        self.permanent = permanent


class Model:
    """A loaded model."""

    def __init__(self, boot: dict[str, Any], module: Any = None) -> None:
        """Loads the module that `boot` names, or takes this one."""
        self.concurrency: int = boot["concurrency"]
        self.instance = Instance(
            boot["model"], boot["instance"], boot["cache_dir"], boot.get("weights_dir"), boot["device"]
        )
        engine = boot["engine"]
        self._module = _import(engine["module"], boot["model_dir"]) if module is None else module
        self._take_functions(engine["module"], engine["function"], boot.get("batches", False))
        self._loop: AbstractEventLoop | None = None
        self._hook("setup")
        self._hook("healthcheck")

    def _take_functions(self, module: str, name: str, batches: bool) -> None:
        """Finds the handlers: the entry point, and `handle_batch` beside it, or instead of the usual one. It has to be
        there where `batches` are to come."""
        beside = getattr(self._module, BATCH, None)
        if not hasattr(self._module, name) and name == _USUAL and callable(beside):
            name = BATCH
        first = Entry(_entrypoint(self._module, module, name), name)
        self.single = None if first.is_batch else first
        """The handler of one request; None where there is one for batches only."""
        self.batch = first if first.is_batch else Entry(beside, BATCH) if callable(beside) else None
        """The handler of batches."""
        self.is_async = is_async(first.function)
        if self.batch is not None and self.batch is not first:
            _check_call(self.batch.function, BATCH)
        if self.batch is not None and is_async(self.batch.function) != self.is_async:
            raise LoadError("entrypoint", f"`{name}` and `{BATCH}` are both `def`, or both `async def`", permanent=True)
        if batches and self.batch is None:
            message = f"omni.toml sets `max` of [batching], and the model has no `{BATCH}`: write one, or remove `max`"
            raise LoadError("entrypoint", message, permanent=True)
        count = getattr(self._module, _COUNT, None)
        self.counter = counting.entry(count if callable(count) else None)

    def loop(self) -> AbstractEventLoop:
        """The one event loop of this process, made when something first needs it."""
        if self._loop is None:
            import asyncio

            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop

    def begin_reports(self, send: Callable[[bytes], None]) -> None:
        """Called by the runner of an event loop: `send` sends a frame that belongs to no request."""

    def teardown(self) -> None:
        """Runs the model's `teardown`; what it raises is logged, the engine ends all the same."""
        try:
            self._hook("teardown")
        except LoadError as err:
            _log.report("ERROR", err.message)

    def check(self) -> str | None:
        """Runs the model's `healthcheck`, in the thread that ran it first: what is wrong, or None."""
        try:
            self._hook("healthcheck")
        except LoadError as err:
            _log.report("ERROR", err.message)
            return err.message
        return None

    async def check_in_loop(self) -> str | None:
        """The same within the event loop, when that runs."""
        try:
            result = self._call("healthcheck")
            if hasattr(result, "__await__"):
                result = await result
        except BaseException as err:
            problem = _raised("healthcheck", err)
        else:
            if result is not False:
                return None
            problem = _UNWELL
        _log.report("ERROR", problem)
        return problem

    def _hook(self, name: str) -> None:
        try:
            result = self._call(name)
            if hasattr(result, "__await__"):
                result = self.loop().run_until_complete(result)
        except LoadError:
            raise
        except BaseException as err:
            raise LoadError(name, _raised(name, err), permanent=False) from None
        if name == "healthcheck" and result is False:
            raise LoadError(name, _UNWELL, permanent=False)

    def _call(self, name: str) -> Any:
        function = getattr(self._module, name, None)
        return None if function is None else function(Context(self.instance))


def _raised(name: str, error: BaseException) -> str:
    return f"{name} raised\n{without_machinery(error)}"


def _import(name: str, directory: str) -> ModuleType:
    enter(directory)
    try:
        return siblings.load(name)
    except BaseException as err:
        raise LoadError("import", f"cannot import {name}\n{without_machinery(err)}", permanent=True) from None


def enter(directory: str) -> None:
    """Modules are found in the model's directory first. A zygote has done it for its instances already."""
    os.chdir(directory)
    os.environ["PWD"] = directory  # as a shell does it, for programs that ask how they came here
    if sys.path[:1] != [directory]:
        sys.path.insert(0, directory)
    siblings.guard(directory)


def without_machinery(error: BaseException) -> str:
    """The traceback from the model's first line on, without the engine and the import system."""
    frames = error.__traceback__
    first = frames
    while frames is not None:
        file = frames.tb_frame.f_code.co_filename
        if (
            file not in (__file__, siblings.__file__)
            and not file.startswith("<frozen importlib")
            and file != importlib.__file__
        ):
            first = frames
            break
        frames = frames.tb_next
    return _log.traceback_of(error.with_traceback(first if frames is not None else None))


def _entrypoint(module: ModuleType, name: str, function: str) -> Callable[..., Any]:
    found = getattr(module, function, None)
    if found is None:
        raise LoadError("entrypoint", f"{name} has no function `{function}`", permanent=True)
    if not callable(found):
        kind = type(found).__name__
        raise LoadError("entrypoint", f"`{function}` in {name} is of type {kind}, not a function", permanent=True)
    _check_call(found, function)
    return found  # type: ignore[no-any-return]


def _check_call(function: Callable[..., Any], name: str) -> None:
    if not takes(function, 2):
        arguments = "(requests, context)" if name == BATCH else "(request, context)"
        message = f"`{name}` cannot be called with {arguments}: write `def {name}{arguments}:`"
        raise LoadError("entrypoint", message, permanent=True)


def is_async(function: object) -> bool:
    """True for an `async def`, also below decorators that keep `__wrapped__`, partials and callable objects."""
    for _ in range(32):
        function = getattr(function, "__func__", function)
        code = getattr(function, "__code__", None)
        if code is not None and code.co_flags & (_COROUTINE | _ASYNC_GENERATOR):
            return True
        inner = getattr(function, "__wrapped__", None) or getattr(function, "func", None)
        if inner is None and code is None and not isinstance(function, type):
            inner = getattr(type(function), "__call__", None)  # noqa: B004  wanted is the method itself
        if inner is None or inner is function:
            return False
        function = inner
    return False
