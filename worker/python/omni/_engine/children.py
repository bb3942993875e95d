"""Interpreters that `multiprocessing` starts: they find modules as the engine does.

A child of `spawn`, the fork server and the resource tracker are started with `python -c`, in the model's directory and
with that directory first in `sys.path`. Where it has a `queue.py`, the library would import the model's file. So these
interpreters are started with the rule of `siblings`, before anything else is imported. All three take the flags of the
interpreter from `multiprocessing.util`: what is added there is a first `-c`, whose program runs the one of the second.
"""

from __future__ import annotations

import os
import sys

from omni._engine import after_import

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
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
        after_import.follow(_MODULE, lambda module: _add(module, directory))


def _add(module: Any, directory: str) -> None:
    flags: Callable[[], list[str]] = getattr(module, _FLAGS)
    program = _PROGRAM.format(package=_PACKAGE, directory=directory)
    setattr(module, _FLAGS, lambda: [*flags(), "-c", program])
