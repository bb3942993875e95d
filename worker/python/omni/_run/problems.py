"""Problems of an `omni.toml` for which a node refuses the model, in the node's words (`config/src/error.rs`).

Unknown keys, wrong values, and the contradictions that matter to a local run. `omnictl check` knows the others.
"""

from __future__ import annotations

import difflib
import json
import re
from typing import Any, NamedTuple

from omni._run import keys
from omni._run.keys import KEYS, Items, Number, Text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from omni._run.keys import Kind

    Table = dict[str, Any]

_SHOWN = 60
_NOT_GENERATION = 'only kind = "text-generation" in [model] has it: remove it'
_ONE = "batches of one request are not divided and have no size: set `batching.max`, or remove it"
_IN_TURN = "batches of `batching.max` requests are handled one after the other: remove it"
_ENGINES = {
    "openai": 'only a node starts the server of engine = "openai": start it by its command, and ask it directly',
    "native": 'only a node has engine = "native": serve the directory with `omni-engine serve`, and ask that directly',
}
_FETCHING = "only a node fetches weights: while you try the model here, name a folder that has them, as file:///PATH"


class Problem(NamedTuple):
    """A problem of a key. `section` is empty at the top of the file."""

    section: str
    key: str
    message: str
    is_unknown: bool = False
    item: int | None = None

    def text(self, file: str) -> str:
        """The problem with its place in the file's text."""
        path = f"{self.section}.{_shown_key(self.key)}" if self.section else _shown_key(self.key)
        path += "" if self.item is None else f"[{self.item}]"
        line = _line(file, self.section, self.key)
        place = "" if line is None else f" (line {line})"
        return f"{'unknown key ' if self.is_unknown else ''}`{path}`{place}: {self.message}"


def of(file: str, told: Table) -> list[str]:
    """All problems of a file's text and the values in it, a line each."""
    found = [*_of_values(told)] or [*_of_sense(told)]
    return [problem.text(file) for problem in found]


def _of_values(told: Table) -> Iterator[Problem]:
    """Unknown keys and wrong values."""
    for name, value in told.items():
        if name == "schema":
            yield from _wrong("", name, value, keys.SCHEMA)
        elif name not in KEYS and name != "env":
            yield _unknown("", name, ["schema", *KEYS, "env"])
        elif not isinstance(value, dict):
            yield Problem("", name, f"expected a table `[{name}]`, found {_found(value)}")
        elif name == "env":
            yield from _of_variables(value)
        else:
            for key, content in value.items():
                if key in KEYS[name]:
                    yield from _wrong(name, key, content, KEYS[name][key])
                else:
                    yield _unknown(name, key, KEYS[name])


def _of_variables(told: Table) -> Iterator[Problem]:
    for name, value in told.items():
        if re.fullmatch(keys.VARIABLE, name) is None:
            yield Problem("env", name, "a model cannot set a variable of this name: choose another one")
        else:
            yield from _wrong("env", name, value, keys.TEXT)


def _unknown(section: str, key: str, known: Iterable[str]) -> Problem:
    near = difflib.get_close_matches(key, known, 1)
    hint = f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(known)}"
    return Problem(section, key, hint, is_unknown=True)


def _wrong(section: str, key: str, value: Any, kind: Kind) -> Iterator[Problem]:
    """A problem for a value of another kind, or for each such item of a list."""
    if not isinstance(kind, Items):
        if not _fits(value, kind):
            yield Problem(section, key, _mismatch(value, kind))
    elif not isinstance(value, list) or len(value) > keys.MOST_ITEMS:
        expected = f'a list of at most {keys.MOST_ITEMS} values: ["…", "…"]'
        yield Problem(section, key, f"expected {expected}, found {_found(value)}")
    else:
        for at, item in enumerate(value):
            if not _fits(item, kind.item):
                yield Problem(section, key, _mismatch(item, kind.item), item=at)


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, Text):
        return isinstance(value, str) and (not kind.pattern or re.fullmatch(kind.pattern, value) is not None)
    if isinstance(kind, Number):
        is_number = type(value) is int or (type(value) is float and not kind.is_whole)
        return is_number and kind.least <= value <= kind.most
    return any(type(value) is type(choice) and value == choice for choice in kind)


def _mismatch(value: Any, kind: Any) -> str:
    hint = ""
    if isinstance(kind, Text):
        expected = kind.expected
        hint = ": write it in quotes" if isinstance(value, (int, float)) else ""
    elif isinstance(kind, Number):
        expected = f"a {'whole ' if kind.is_whole else ''}number from {kind.least} to {kind.most}"
        is_quoted = isinstance(value, str) and re.fullmatch(r"[0-9]+(\.[0-9]+)?", value) is not None
        hint = ": write it without quotes" if is_quoted else ""
    else:
        expected = " or ".join(json.dumps(choice) for choice in kind)
    return f"expected {expected}, found {_found(value)}{hint}"


def _of_sense(told: Table) -> Iterator[Problem]:
    """Keys that contradict each other (`config/src/manifest/support.rs`), and what this version has not."""

    def at(section: str, key: str, default: Any) -> Any:
        return told.get(section, {}).get(key, default)

    if at("model", "kind", "custom") == "text-generation":
        for key, known in (("tool-parser", keys.TOOL_PARSERS), ("reasoning-parser", keys.REASONING_PARSERS)):
            name = at("chat", key, "auto")
            if name not in known:
                yield Problem("chat", key, f"there is no parser {_found(name)}: write one of {', '.join(known)}")
    else:
        if at("generation", "honours", []):
            yield Problem("generation", "honours", _NOT_GENERATION)
        for key, usual in (("render", "node"), ("tool-parser", "auto"), ("reasoning-parser", "auto")):
            if at("chat", key, usual) != usual:
                yield Problem("chat", key, _NOT_GENERATION)
    most, cost, isolates = (
        at("batching", "max", 1),
        at("batching", "cost", "requests"),
        at("batching", "isolate", False),
    )
    if most == 1 and (isolates or cost != "requests"):
        yield Problem("batching", "isolate" if isolates else "cost", _ONE)
    if most > 1 and cost == "requests" and at("scaling", "concurrency", 1) > 1:
        yield Problem("scaling", "concurrency", _IN_TURN)
    engine = at("runtime", "engine", "python")
    if engine in _ENGINES:
        yield Problem("runtime", "engine", _ENGINES[engine])
    source = at("weights", "source", "")
    if source and not source.startswith("file:///"):
        yield Problem("weights", "source", _FETCHING)


def _shown_key(key: str) -> str:
    """A key as messages show it: in quotes only where TOML needs them."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]{1,60}", key) else _found(key)


def _found(value: Any) -> str:
    """A value as messages show it."""
    if isinstance(value, str):
        return json.dumps(value[:_SHOWN], ensure_ascii=False) + ("…" if len(value) > _SHOWN else "")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"the number {str(value)[:_SHOWN]}"
    return "a list" if isinstance(value, list) else "a table" if isinstance(value, dict) else "a date"


def _line(file: str, section: str, key: str) -> int | None:
    """The line of a key that is written in the usual way: below the header of its section, or as `section.key`."""
    name = rf"[\"']?{re.escape(key)}[\"']?"
    below, dotted = re.compile(rf"{name}\s*[=.]"), re.compile(rf"{re.escape(section)}\s*\.\s*{name}\s*=")
    inside = ""
    for number, line in enumerate(map(str.strip, file.splitlines()), 1):
        header = re.match(r"\[+\s*([^\[\]]+?)\s*\]", line)
        if header is not None:
            inside = header[1]
            if not section and inside == key:
                return number
        elif (inside == section and below.match(line)) or (not inside and section and dotted.match(line)):
            return number
    return None
