"""Keys of a model's `omni.toml` that the local run reads: kind, entry point, weights, variables, deadline, largest
body, and what a model that generates text does itself."""

from __future__ import annotations

import string
import sys
from importlib import import_module

from omni._run import problems

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


class ManifestError(Exception):
    """A node refuses the model for its manifest."""


class Manifest:
    """The manifest's values, or a node's defaults."""

    def __init__(self, told: dict[str, Any], is_read: bool = True) -> None:
        self.is_read = is_read
        """False if there is a file that this Python cannot read."""
        self.kind: str = _at(told, "model", "kind", "custom")
        self.honours: list[str] = _at(told, "generation", "honours", [])
        """Abilities of a model that generates text, beside the common ones."""
        self.renders_itself: bool = _at(told, "chat", "render", "node") == "model"
        """The handler gets messages instead of a prompt."""
        parser = _at(told, "chat", "tool-parser", "auto")
        self.calls_itself: bool = parser == "none" or (parser == "auto" and self.renders_itself)
        """The handler yields tool calls: none are in its text."""
        self.separates_reasoning: bool = _at(told, "chat", "reasoning-parser", "auto") not in ("auto", "none")
        """A node separates reasoning from the text, whatever the template is."""
        entry = _at(told, "model", "entrypoint", "model:handle_request")
        self.module, _, self.function = entry.partition(":")
        self.weights: str | None = _at(told, "weights", "source", "")[len("file://") :] or None
        self.env: dict[str, str] = told.get("env", {})
        self.timeout = _number(_at(told, "timeouts", "request", "1m"), _UNITS)
        self.grace = _number(_at(told, "timeouts", "cancel-grace", "5s"), _UNITS)
        self.body = int(_number(_at(told, "limits", "body", "10MiB"), _SIZES))
        self.has_batches: bool = _at(told, "batching", "max", 1) > 1
        """The node hands in batches."""
        self.priority: int = _at(told, "scaling", "priority", 0)


def read(directory: Path) -> Manifest:
    """The manifest of a model's directory. Raises `ManifestError`."""
    path = directory / "omni.toml"
    if not path.exists():
        return Manifest({})
    for name in ("tomllib", "tomli"):
        try:
            toml = import_module(name)
        except ImportError:
            continue
        try:
            text = path.read_text(encoding="utf-8")
            told = toml.loads(text)
        except (ValueError, RecursionError) as err:
            raise ManifestError(f"{path}: not valid TOML: {err}") from None
        found = problems.of(text, told)
        if found:
            raise ManifestError("\n".join(f"{path}: {problem}" for problem in found))
        return Manifest(told)
    print("omni.toml is not read: this needs Python 3.11, or the package tomli", file=sys.stderr)
    return Manifest({}, is_read=False)


def _at(told: dict[str, Any], section: str, key: str, default: Any) -> Any:
    return told.get(section, {}).get(key, default)


def _number(text: str, units: dict[str, Any]) -> float:
    digits = text.rstrip(string.ascii_letters)
    return float(digits) * float(units[text[len(digits) :]])
