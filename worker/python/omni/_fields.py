"""Fields of a request's JSON body: read by their names, refused by their paths."""

from __future__ import annotations

from omni.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_KINDS: dict[str, Callable[[object], bool]] = {
    "text": lambda value: isinstance(value, str),
    "an integer": _is_integer,
    "a number": _is_number,
    "true or false": lambda value: isinstance(value, bool),
    "a list": lambda value: isinstance(value, list),
    "an object": lambda value: isinstance(value, dict),
    "a list of texts": lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
    "a list of integers": lambda value: isinstance(value, list) and all(map(_is_integer, value)),
    "a list of objects": lambda value: isinstance(value, list) and all(isinstance(item, dict) for item in value),
}


class Fields:
    """The fields of a JSON object. Its methods raise `BadRequest`, which names the field."""

    __slots__ = ("_path", "_values")

    def __init__(self, values: object, path: str = "") -> None:
        if not isinstance(values, dict):
            what = f"`{path}` is" if path else "the body is"
            raise BadRequest(f"{what} a JSON object, not {_shown(values)}", path or None)
        self._values = values
        self._path = f"{path}." if path else ""

    def get(self, name: str, kind: str, default: Any = None) -> Any:
        """The field, or the default where it is absent or null."""
        value = self._values.get(name)
        if value is None:
            return default
        if not _KINDS[kind](value):
            raise self.wrong(name, f"is {kind}, not {_shown(value)}")
        return value

    def require(self, name: str, kind: str) -> Any:
        """The field, which has to be there."""
        value = self.get(name, kind)
        if value is None:
            raise self.wrong(name, f"is missing: {kind} is needed")
        return value

    def names(self) -> Iterable[str]:
        """The names of all fields."""
        return self._values.keys()

    def raw(self, name: str) -> Any:
        """The field as it is; None where it is absent."""
        return self._values.get(name)

    def wrong(self, name: str, what: str) -> BadRequest:
        """The refusal of a field."""
        path = f"{self._path}{name}"
        return BadRequest(f"`{path}` {what}", path)


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    names = {str: "text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), f"of type {type(value).__qualname__}")
