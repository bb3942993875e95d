"""A function of the model: what it takes, by the annotation of its first parameter, and what its results become.

    none, or `omni.Request`          the request; results as ever (`answer`)
    `omni.TextGeneration` and so on  the request that the node has read (`generation`, `results`)
    a pydantic model                 the JSON body, validated
    a list of one of these           a batch

A function named `handle_batch` takes a batch, too. Any other annotation is the author's own business. Annotations may
be texts: they are evaluated where the function was defined, and a name of this package's that only a type checker
imports is known all the same.
"""

from __future__ import annotations

from types import FunctionType, MethodType

from omni._engine.answer import Stream, whole
from omni.request import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Take = Callable[[Request], Any]
    Make = Callable[[int, Any, Any], "bytes | Stream"]

BATCH = "handle_batch"
"""Name of a function that takes a batch."""
_TYPED = frozenset(("TextGeneration", "Embeddings", "Rerank", "SpeechToText", "TextToSpeech", "TextToImage"))
_MODULES = ("omni.generation", "omni.tasks")
_VARARGS = 0x04  # inspect.CO_VARARGS


class Entry:
    """A function of the model. `take` makes its argument from a request, None: the request itself; `make` makes frames
    of its result, None: `whole`. `reads_body`: `take` reads the whole body."""

    __slots__ = ("function", "is_batch", "make", "reads_body", "take")

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        annotation, is_list = _annotation(function)
        typed = _typed_name(annotation)
        is_known = typed is not None or _is_pydantic(annotation)
        self.function = function
        self.is_batch = name == BATCH or (is_list and (is_known or annotation is Request))
        self.reads_body = is_known and typed != "SpeechToText"
        self.take: Take | None = None
        self.make: Make | None = None
        if typed is not None:
            from omni._engine import kinds

            self.take, self.make = kinds.of_name(typed)
        elif is_known:
            from omni._engine import validated

            self.take = validated.reader(annotation)

    def frames(self, number: int, result: object, given: object) -> bytes | Stream:
        """The last frame for a result, or a stream. Raises `Unserialisable`."""
        return whole(number, result) if self.make is None else self.make(number, result, given)


def kind_of(function: Callable[..., Any]) -> str | None:
    """The kind of requests that the annotation of a function's first parameter names."""
    typed = _typed_name(_annotation(function)[0])
    if typed is None:
        return None
    from omni._engine import kinds

    return kinds.kind_of(typed)


def takes(function: Callable[..., Any], count: int) -> bool:
    """True unless the function surely cannot be called with so many arguments. Only plain functions and methods are
    judged, by their exact type: proxies show the attributes of what they wrap, and a decorator may add arguments."""
    given = count
    while type(function) is MethodType:
        function, given = function.__func__, given + 1
    if type(function) is not FunctionType:
        return True
    code = function.__code__
    most = code.co_argcount
    least = most - len(function.__defaults__ or ())
    named = code.co_varnames[most : most + code.co_kwonlyargcount]
    defaults = function.__kwdefaults__ or {}
    return least <= given and (given <= most or bool(code.co_flags & _VARARGS)) and all(n in defaults for n in named)


def _annotation(function: Callable[..., Any]) -> tuple[Any, bool]:
    """The annotation of the first parameter, and whether it is a list of that."""
    plain = _plain(function)
    if plain is None:
        return None, False
    target, skip = plain
    code = target.__code__
    names = code.co_varnames[skip : max(code.co_argcount, skip)]
    if not names:
        return None, False
    annotation = getattr(target, "__annotations__", {}).get(names[0])
    if isinstance(annotation, str):
        annotation = _evaluated(annotation, target)
    if isinstance(annotation, str):
        outer, bracket, inner = annotation.partition("[")
        is_list = bracket and inner.endswith("]") and outer.rpartition(".")[2].lower() in ("list", "sequence")
        return (inner.rstrip("]"), True) if is_list else (annotation, False)
    arguments: tuple[Any, ...] = getattr(annotation, "__args__", ())
    origin = getattr(annotation, "__origin__", None)
    if len(arguments) == 1 and getattr(origin, "__name__", "") in ("list", "Sequence"):
        inner = arguments[0]
        return (_evaluated(inner, target) if isinstance(inner, str) else inner), True
    return annotation, False


def _plain(function: Any) -> tuple[Any, int] | None:
    """The function below decorators, partials and callable objects, and how many parameters are bound in it."""
    skip = 0
    for _ in range(32):
        if hasattr(function, "__func__"):
            function, skip = function.__func__, skip + 1
            continue
        inner = getattr(function, "__wrapped__", None)
        if inner is None and hasattr(function, "func"):  # a partial
            inner, skip = function.func, skip + len(getattr(function, "args", ()))
        if inner is None:
            if hasattr(function, "__code__"):
                return function, skip
            inner = getattr(type(function), "__call__", None) if not isinstance(function, type) else None  # noqa: B004
            skip += 1
        if inner is None or inner is function:
            return None
        function = inner
    return None


def _evaluated(text: str, function: Any) -> Any:
    """The value of an annotation; the text where it has none."""
    try:
        return eval(text, getattr(function, "__globals__", {}))
    except Exception:
        return text


def _typed_name(annotation: Any) -> str | None:
    """The name of a request type of this package."""
    if isinstance(annotation, str):
        text = annotation.strip().strip("\"'").rpartition(".")[2]
        return text if text in _TYPED else None
    name: str | None
    name, module = getattr(annotation, "__name__", None), getattr(annotation, "__module__", None)
    return name if module in _MODULES and name in _TYPED else None


def _is_pydantic(annotation: Any) -> bool:
    return isinstance(annotation, type) and any(
        base.__name__ == "BaseModel" and base.__module__.partition(".")[0] == "pydantic" for base in annotation.__mro__
    )
