"""Interpreters that `multiprocessing` starts: they find modules as the engine does.

A child of `spawn`, the fork server and the resource tracker are started with `python -c`, in the model's directory and
with that directory first in `sys.path`. Where it has a `queue.py`, the library would import the model's file. So these
interpreters are started with the rule of `siblings`, before anything else is imported. All three take the flags of the
interpreter from `multiprocessing.util`: what is added there is a first `-c`, whose program runs the one of the second.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_MODULE = "multiprocessing.util"
_FLAGS = "_args_from_interpreter_flags"
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_PROGRAM = """
import sys
if sys.path[:1] == [""]:
    del sys.path[0]
sys.path.insert(0, {package!r})
from omni._engine import siblings
siblings.guard({directory!r})
program = sys.argv[2]
del sys.argv[1:3]
exec(program)
"""


def follow(directory: str) -> None:
    """Has the rule of the model's directory followed by the interpreters that `multiprocessing` starts from now on."""
    loaded = sys.modules.get(_MODULE)
    if loaded is not None:
        _add(loaded, directory)
    else:
        sys.meta_path.insert(0, _Finder(directory))


def _add(module: Any, directory: str) -> None:
    flags: Callable[[], list[str]] = getattr(module, _FLAGS)
    program = _PROGRAM.format(package=_PACKAGE, directory=directory)
    setattr(module, _FLAGS, lambda: [*flags(), "-c", program])


class _Finder:
    """A finder that sees when `multiprocessing.util` is imported."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._directory)  # type: ignore[assignment]
        return spec


class _Loader:
    """The loader of `multiprocessing.util`, and what follows once it is loaded."""

    def __init__(self, loader: Any, directory: str) -> None:
        self._loader = loader
        self._directory = directory

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _add(module, self._directory)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
