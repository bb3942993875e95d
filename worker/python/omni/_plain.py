"""Values of common Python types as plain JSON values, and the place of one that has no such form.

`plain` is what the JSON encoder calls for a type that it does not know. `rebuilt` walks a whole value in Python: it
runs only after the fast encoder has failed, and finds out where. Types are recognised by name, so that none of their
modules is imported for an answer that has no such value.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_BY_NAME: dict[str, Callable[[Any], object]] = {
    "datetime.date": lambda value: value.isoformat(),  # and `datetime`, which is a date
    "datetime.time": lambda value: value.isoformat(),
    "datetime.timedelta": lambda value: value.total_seconds(),
    "decimal.Decimal": str,  # as a number it would be rounded by its reader
    "enum.Enum": lambda value: value.value,
    "uuid.UUID": str,
    "builtins.set": list,
    "builtins.frozenset": list,
    "collections.deque": list,
}


_KEYS = frozenset((str, int, float, bool, type(None)))
"""Types of keys, and of values, that the encoder knows by itself."""


class Unwritable(TypeError):
    """A value that JSON cannot say."""


def plain(value: object) -> object:
    """A value of a type that JSON does not know as one that it does; `Unwritable` when there is no such value."""
    kind = type(value)
    for base in kind.__mro__:
        convert = _BY_NAME.get(f"{base.__module__}.{base.__qualname__}")
        if convert is not None:
            return convert(value)
    fields = getattr(kind, "__dataclass_fields__", None)
    if fields is not None:
        return {name: _field(value, name) for name, field in fields.items() if _of_instance(field)}
    dump: Any = getattr(value, "model_dump", None)  # pydantic 2
    if dump is not None and hasattr(kind, "model_fields"):
        return dump(mode="json")
    if hasattr(kind, "__fields__") and hasattr(value, "json"):  # pydantic 1: only its own encoder knows its types
        return json.loads(value.json())
    tolist: Any = getattr(value, "tolist", None)  # numpy scalars and arrays, and what copies their manners
    if tolist is not None and hasattr(value, "dtype"):
        return tolist()
    path: Any = getattr(value, "__fspath__", None)
    if path is not None and kind is not type:
        return path()
    raise Unwritable(f"a value of type {kind.__module__}.{kind.__qualname__} cannot be written as JSON")


def _of_instance(field: Any) -> bool:
    """True if a dataclass's field belongs to its instances: class variables and `InitVar`s are listed among them."""
    return getattr(field._field_type, "name", "") == "_FIELD"


def _field(value: object, name: str) -> object:
    try:
        return getattr(value, name)
    except AttributeError:
        raise Unwritable(f"the field `{name}` of {type(value).__qualname__} has no value") from None


def differ(value: object) -> bool:
    """True if the keys of each dict are different texts in JSON. False, too, where only `rebuilt` can tell."""
    left: list[Any] = [value]
    while left:
        one = left.pop()
        kind = type(one)
        if kind is dict:
            if set(map(type, one)) != {str}:
                known = {key if type(key) is str else json.dumps(key) for key in one if type(key) in _KEYS}
                if len(known) < len(one):
                    return False
            left.extend(one.values())
        elif kind is list or kind is tuple:
            left.extend(one)
        elif kind not in _KEYS:
            return False
    return True


def rebuilt(value: object, place: str) -> object:
    """`value` of plain dicts, lists, texts and numbers, whose keys are texts. Raises `Unwritable`, which names the
    place, written as Python code that starts with `place`, or `RecursionError`."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return _text(value, place)
    if isinstance(value, float):
        if value - value != 0:
            raise Unwritable(f"{place}: {float.__repr__(value)} is not a JSON number")
        return value
    if isinstance(value, dict):
        made: dict[str, object] = {}
        for key, item in value.items():
            text = _key(key, place)
            if text in made:
                raise Unwritable(f"{place}: two of its keys are written as {_shown(text)}")
            made[text] = rebuilt(item, f"{place}[{_shown(key)}]")
        return made
    if isinstance(value, (list, tuple)):
        return [rebuilt(item, f"{place}[{at}]") for at, item in enumerate(value)]
    kind = type(value)
    try:
        inner = plain(value)
    except Exception as err:  # the model's own model_dump or tolist may raise anything
        what = str(err) if isinstance(err, Unwritable) else f"{kind.__qualname__} raised {type(err).__name__}: {err}"
        raise Unwritable(f"{place}: {what}") from err
    if isinstance(inner, dict) and hasattr(kind, "__dataclass_fields__"):
        return {name: rebuilt(item, f"{place}.{name}") for name, item in inner.items()}
    return rebuilt(inner, place)


def _text(text: str, place: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as err:
        found = ascii(text[err.start])
        raise Unwritable(f"{place}: character {err.start} is the lone surrogate {found}, which UTF-8 has not") from None
    return text


def _key(key: object, place: str) -> str:
    """A dict's key as JSON's own encoder writes it."""
    known = key if key is None or isinstance(key, (str, int, float)) else _plain_key(key, place)
    if isinstance(known, str):
        return _text(known, f"{place}, the key {_shown(key)}")
    return json.dumps(rebuilt(known, f"{place}, the key {_shown(key)}"))


def _plain_key(key: object, place: str) -> object:
    try:
        made = plain(key)
    except Exception:
        made = key
    if made is None or isinstance(made, (str, int, float)):
        return made
    raise Unwritable(f"{place}: a key of type {type(key).__qualname__} cannot be written as JSON: {_shown(key)}")


def _shown(key: object) -> str:
    """A key within a place: short, and in ASCII where its text is not fit to be read."""
    try:
        text = json.dumps(key, ensure_ascii=not key.isprintable()) if isinstance(key, str) else repr(key)
    except Exception:
        text = f"<{type(key).__qualname__}>"
    return text if len(text) <= 60 else text[:57] + "…" + text[-2:]
