"""Files of a model named like modules of Python's library: the model gets its own, everything else the library's.

With `/model` first in `sys.path`, a `token.py` beside `model.py` would also be what the engine, the library and
installed packages get for `import token`, whenever they import it first: `traceback` may be as late as the
first failure. And where the engine has imported the library's module already, the model would get that, not its own.

Therefore, where there are such files, `import token` means the model's file in the model's own modules only. It is
imported as `_siblings.token`, and never stands in `sys.modules` under the library's name. Interpreters that
`multiprocessing` starts have the same rule (`children`). A model without such files pays for one listing of its
directory. As in any Python, a file named like a module that the interpreter has built in or begins with (`time`, `os`)
is never imported.
"""

from __future__ import annotations

import builtins
import importlib
import os
import sys
from importlib.machinery import FrozenImporter, PathFinder, SourceFileLoader, all_suffixes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_PREFIX = "_siblings"
_BEGINNING = frozenset(("_collections_abc", "abc", "codecs", "encodings", "genericpath", "importlib", "io", "ntpath"))
_BEGINNING |= frozenset(("os", "posixpath", "site", "sitecustomize", "stat", "usercustomize", "zipimport"))
LIBRARY = [os.path.dirname(os.__file__), os.path.join(os.path.dirname(os.__file__), "lib-dynload")]
"""Where the modules of Python's library are."""
_guard: Guard | None = None


def guard(directory: str) -> None:
    """Looks for such files in the model's directory, once."""
    global _guard
    if _guard is None:
        names = _named_like_the_library(directory)
        if names:
            from omni._engine import children

            _guard = Guard(directory, names)
            children.follow(directory)


def load(name: str) -> ModuleType:
    """Imports a module of the model by its name."""
    if _guard is not None and name.partition(".")[0] in _guard.names:
        name = f"{_PREFIX}.{name}"
    return importlib.import_module(name)


def _named_like_the_library(directory: str) -> frozenset[str]:
    try:
        entries = os.listdir(directory)
    except OSError:
        return frozenset()  # then nothing is imported from it either
    library = getattr(sys, "stdlib_module_names", None)  # from Python 3.10 on
    found = set()
    for entry in entries:
        name, dot, _ = entry.partition(".")
        is_module = entry[len(name) :] in all_suffixes() if dot else _is_package(os.path.join(directory, entry))
        if is_module and not name.startswith("__") and name not in _BEGINNING and name not in sys.builtin_module_names:
            known = name in library if library is not None else PathFinder.find_spec(name, LIBRARY) is not None
            if known and FrozenImporter.find_spec(name) is None:
                found.add(name)
    return frozenset(found)


def _is_package(path: str) -> bool:
    return any(os.path.exists(os.path.join(path, f"__init__{suffix}")) for suffix in all_suffixes())


class Guard:
    """A finder, before the one of `sys.path`."""

    def __init__(self, directory: str, names: frozenset[str]) -> None:
        self.names = names
        self._directory = directory
        self._builtins: dict[str, Any] = {}
        package = type(sys)(_PREFIX)
        package.__path__ = [directory]
        sys.modules[_PREFIX] = package
        at = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else len(sys.meta_path)
        sys.meta_path.insert(at, self)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """The library's module for a name of the library's; for the model's own modules, their usual finder."""
        if path is None and name in self.names:
            spec = PathFinder.find_spec(name, LIBRARY)
            if spec is None:  # the library of another system has it: the next finder would take the model's
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            return spec
        inside = [entry for entry in ([self._directory] if path is None else path) if self._is_inside(entry)]
        if not inside:
            return None
        spec = PathFinder.find_spec(name, inside)
        if spec is None or type(spec.loader) is not SourceFileLoader:
            return None
        spec.loader = Loader(spec.loader.name, spec.loader.path)
        spec.loader.builtins = self._own_builtins()
        return spec

    def _is_inside(self, path: str) -> bool:
        return path == self._directory or path.startswith(self._directory + os.sep)

    def _own_builtins(self) -> dict[str, Any]:
        if not self._builtins:
            self._builtins = {**vars(builtins), "__import__": self._import}
        return self._builtins

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        """`import` in the model's modules. C code that imports for itself hands in a list, a statement never does."""
        top = name.partition(".")[0]
        if level or top not in self.names or type(fromlist) is list:
            return builtins.__import__(name, globals, locals, fromlist, level)
        module = builtins.__import__(f"{_PREFIX}.{name}", globals, locals, fromlist, 0)
        return module if fromlist else sys.modules[f"{_PREFIX}.{top}"]


class Loader(SourceFileLoader):
    """Runs a module of the model's, whose `import` statements look into the model's directory first."""

    builtins: dict[str, Any]

    def exec_module(self, module: ModuleType) -> None:
        """Runs it."""
        module.__dict__["__builtins__"] = self.builtins
        super().exec_module(module)
