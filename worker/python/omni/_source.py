"""The model that a client for tests is given: its directory, its module, or its handler."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Union

    from omni._run.manifest import Manifest

    Source = Union[str, Path, types.ModuleType, Callable[..., Any]]


def manifest_of(source: Source) -> Manifest | None:
    """The manifest of a model's directory; None for a module or a handler. `RuntimeError` where a node refuses it."""
    if callable(source) or isinstance(source, types.ModuleType):
        return None
    from omni._run import manifest, startup

    directory = Path(source).resolve()
    if not directory.is_dir():
        raise NotADirectoryError(f"{directory} is not the directory of a model")
    try:
        read = manifest.read(directory)
        problem = startup.problem_of_files(directory, read)
    except manifest.ManifestError as err:
        problem = str(err)
    if problem is not None:
        raise RuntimeError(problem)
    return read


def found(source: Source, manifest: Manifest | None) -> tuple[Any, str]:
    """The module of a model, and the name of its handler."""
    if isinstance(source, types.ModuleType):
        return source, "handle_request"
    if manifest is not None:
        return _imported(manifest.module, Path(source).resolve()), manifest.function  # type: ignore[arg-type]
    name = getattr(source, "__name__", "handle_request")
    module = sys.modules.get(getattr(source, "__module__", None) or "")
    if getattr(module, name, None) is source:
        return module, name
    return types.SimpleNamespace(__name__="test", **{name: source}), name


def gets_prompts(source: Source) -> bool:
    """True for the directory of a model that generates text from prompts, which the node renders."""
    entry = manifest_of(source)
    return entry is not None and entry.kind == "text-generation" and not entry.renders_itself


def _imported(name: str, directory: Path) -> types.ModuleType:
    """A module of this directory, which comes first in `sys.path` from now on. Another model's module of the same name
    is forgotten."""
    known = sys.modules.get(name)
    if known is not None and directory not in Path(getattr(known, "__file__", None) or "").parents:
        del sys.modules[name]
    if sys.path[:1] != [str(directory)]:
        sys.path.insert(0, str(directory))
    importlib.invalidate_caches()
    return importlib.import_module(name)
