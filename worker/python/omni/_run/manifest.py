"""Keys of a model's `omni.toml` that the local run reads: kind, entry point, weights, variables, deadline, largest
body, and what a model that generates text does itself."""

from __future__ import annotations

import re
import sys
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


class ManifestError(Exception):
    """The file is not a manifest."""


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
        self.weights = _folder(_at(told, "weights", "source", ""))
        self.env: dict[str, str] = {name: str(value) for name, value in told.get("env", {}).items()}
        self.timeout: float = _number("timeouts.request", _at(told, "timeouts", "request", "1m"), _UNITS)
        self.grace: float = _number("timeouts.cancel-grace", _at(told, "timeouts", "cancel-grace", "5s"), _UNITS)
        self.body = int(_number("limits.body", _at(told, "limits", "body", "10MiB"), _SIZES))
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
            return Manifest(toml.loads(path.read_text(encoding="utf-8")))
        except (ValueError, AttributeError, TypeError) as err:
            raise ManifestError(f"{path}: {err}; `omnictl check` says more") from None
    print("omni.toml is not read: this needs Python 3.11, or the package tomli", file=sys.stderr)
    return Manifest({}, is_read=False)


def _at(told: dict[str, Any], section: str, key: str, default: Any) -> Any:
    value = told.get(section, {}).get(key, default)
    if type(value) is not type(default):
        raise ValueError(f"`{section}.{key}` is not like {default!r}")
    return value


def _folder(source: str) -> str | None:
    if source and not source.startswith("file:///"):
        raise ValueError(f"`weights.source` is {source!r}; only a folder is known here, as file:///PATH")
    return source[len("file://") :] or None


def _number(key: str, text: str, units: dict[str, Any]) -> float:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]+)", text)
    if found is None or found[2] not in units:
        raise ValueError(f"`{key}` is {text!r}, a number with one of {', '.join(units)} is needed")
    return float(found[1]) * float(units[found[2]])
