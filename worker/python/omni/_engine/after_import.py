"""Runs a function after the import of a module, without importing the module itself."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


def follow(name: str, then: Callable[[Any], None], places: Sequence[str] | None = None) -> None:
    """Has `then` called with the module once it is loaded. It is looked for in `places` alone, if they are given."""
    sys.meta_path.insert(0, _Finder(name, then, places))


class _Finder:
    """A finder that finds one module, once."""

    def __init__(self, name: str, then: Callable[[Any], None], places: Sequence[str] | None) -> None:
        self._name = name
        self._then = then
        self._places = places

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path if self._places is None else self._places)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._then)  # type: ignore[assignment]
        return spec


class _Loader:
    """The module's own loader, and what follows."""

    def __init__(self, loader: Any, then: Callable[[Any], None]) -> None:
        self._loader = loader
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._then(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
