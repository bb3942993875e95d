"""Parameters of a request, read by name. A value out of its bounds, and a parameter that is not known, are refused.

Invariant: a parameter that is null counts as absent.
"""

from __future__ import annotations

import difflib

from omni import _json
from omni._run import other_api, refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

_ADVICE = 0.85
"""Similarity from which on a known name is taken for the one that was meant."""
_MOST = 4294967295
LONGEST_NAME = 64
"""Longest name of a client's own that a message repeats."""


def of_body(body: bytes, known: Iterable[str], unsupported: Mapping[str, str]) -> Parameters:
    """The parameters of a JSON body."""
    try:
        value = _json.decode(body)
    except (ValueError, RecursionError) as err:
        raise refusal.invalid(None, f"the request's body is not JSON: {err}") from None
    try:
        _json.encode(value, "body")
    except (TypeError, ValueError, RecursionError) as err:  # half a surrogate pair, or a number beyond all bounds
        raise refusal.invalid(None, f"the request's body cannot be handed on: {err}") from None
    return Parameters(value, known, unsupported)


class Parameters:
    """The parameters of a JSON object at a path. Its methods raise `Refused`."""

    def __init__(
        self, values: Any, known: Iterable[str] | None, unsupported: Mapping[str, str] | None = None, at: str = ""
    ) -> None:
        """`known`: names of all parameters, None: others are accepted. `unsupported`: those that cannot be honoured,
        each with the reason."""
        if not isinstance(values, dict):
            subject = f"`{at}`" if at else "the request's body"
            raise refusal.wrong_type(at or None, f"{subject} is {shown(values)}: it has to be an object")
        self._values = values
        self._at = at
        names = set(known or ())
        for name in values if known is not None else ():
            if name in names:
                continue
            reason = (unsupported or {}).get(name)
            if reason is not None and values[name] is None:
                continue  # asks for nothing
            if reason is not None:
                raise refusal.unsupported(self.path(name), f"`{name}` is not supported: {reason}")
            name = name[:LONGEST_NAME]
            raise refusal.unknown(self.path(name), f"there is no parameter `{name}`: {self._advice(name, names)}")

    def _advice(self, name: str, known: set[str]) -> str:
        """Advice on a parameter that is not known."""
        meant, routes = (None, None) if self._at else (other_api.same(name, known), other_api.routes(name))
        if meant is None and routes is not None:
            return f"it belongs to {routes}"
        meant = meant or next(iter(difflib.get_close_matches(name, sorted(known), 1, _ADVICE)), None)
        return f"did you mean `{meant}`?" if meant is not None else "leave it out"

    def path(self, name: str) -> str:
        """The path of a parameter."""
        return f"{self._at}.{name}" if self._at else name

    def has(self, name: str) -> bool:
        """True if the parameter is there."""
        return self._values.get(name) is not None

    def is_null(self, name: str) -> bool:
        """True if the parameter is null."""
        return name in self._values and self._values[name] is None

    def get(self, name: str) -> Any:
        """The parameter as it is; None where it is absent."""
        return self._values.get(name)

    def typed(self, name: str, kind: type | tuple[type, ...], what: str) -> Any:
        """The parameter if it is of this type."""
        value = self._values.get(name)
        is_flag = isinstance(value, bool) and kind is not bool
        if value is not None and (is_flag or not isinstance(value, kind)):
            raise refusal.wrong_type(self.path(name), f"`{self.path(name)}` is {shown(value)}: it has to be {what}")
        return value

    def object(self, name: str) -> Any:
        """An object, which is handed on as it is."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, dict):
            raise refusal.invalid(self.path(name), f"`{self.path(name)}`: it has to be an object")
        return value

    def text(self, name: str, longest: int | None = None, required: bool = False) -> str | None:
        """A text, which is not empty if it is required."""
        value: str | None = self.typed(name, str, "a string")
        if value is None and required:
            raise refusal.missing(self.path(name))
        if value is not None and longest is not None and len(value.encode("utf-8", "replace")) > longest:
            raise refusal.invalid(self.path(name), f"`{self.path(name)}` is longer than {longest} bytes")
        if value == "" and required:
            raise refusal.invalid(self.path(name), f"`{self.path(name)}` is empty")
        return value

    def flag(self, name: str) -> bool | None:
        """True or false."""
        value: bool | None = self.typed(name, bool, "a boolean")
        return value

    def integer(self, name: str, least: int = 0, most: int = _MOST) -> int | None:
        """A whole number within its bounds."""
        value: int | None = self.typed(name, int, "an integer")
        self._check_bounds(name, value, least, most)
        return value

    def number(self, name: str, least: float, most: float) -> float | None:
        """A number within its bounds."""
        value: float | None = self.typed(name, (int, float), "a number")
        self._check_bounds(name, value, least, most)
        return value

    def share(self, name: str, most: float) -> float | None:
        """A number above 0."""
        value: float | None = self.typed(name, (int, float), "a number")
        if value is not None and not 0 < value <= most:
            message = f"`{self.path(name)}` is {value}: it has to be above 0, and {most:g} at most"
            raise refusal.invalid(self.path(name), message)
        return value

    def _check_bounds(self, name: str, value: float | None, least: float, most: float) -> None:
        if value is not None and not least <= value <= most:
            message = f"`{self.path(name)}` is {value}: it has to be from {least} to {most}"
            raise refusal.invalid(self.path(name), message)

    def items(self, name: str, most: int, required: bool = False) -> list[Any]:
        """A list; empty where it is absent."""
        value: list[Any] | None = self.typed(name, list, "an array")
        if value is None and required:
            raise refusal.missing(self.path(name))
        count(self.path(name), value or [], 1 if required else 0, most)
        return value or []

    def word(self, name: str, words: Iterable[str]) -> str | None:
        """A text that is one of these words."""
        value = self.text(name)
        known = list(words)
        if value is not None and value not in known:
            raise refusal.invalid(self.path(name), f"`{self.path(name)}` has to be one of `{'`, `'.join(known)}`")
        return value

    def harmless(self, name: str, values: Iterable[Any], reason: str) -> None:
        """Refuses a parameter unless it has one of these values, which change nothing."""
        if self.has(name) and self.get(name) not in list(values):
            message = f"`{self.path(name)}` has an unsupported value: {reason}"
            raise refusal.unsupported(self.path(name), message)


def count(path: str, items: list[Any], least: int, most: int) -> None:
    """Refuses a list that is too short or too long."""
    if least and not items:
        raise refusal.invalid(path, f"`{path}` is empty")
    if len(items) > most:
        raise refusal.invalid(path, f"`{path}` has {len(items)} items: there have to be {least} to {most}")


def shown(value: Any) -> str:
    """Description of a value; texts are not repeated."""
    if value is None or isinstance(value, (bool, int, float)):
        return _json.encode(value).decode()
    return "a string" if isinstance(value, str) else "an array" if isinstance(value, list) else "an object"
