"""Generated text as frames: the chunks of `protocol/engine/src/generation`.

Text stays text, the fast path; everything else that a handler yields is an event, or bytes of text.
"""

from __future__ import annotations

from omni import _json
from omni._engine import wire
from omni._engine.answer import Stream, error_of
from omni.errors import Unserialisable
from omni.generation import Completion, Finish, Reasoning, Token, ToolCall, Usage
from omni.response import Response

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_BYTES = (bytes, bytearray, memoryview)
_PIECES = "str, bytes, Token, Reasoning, ToolCall and Finish"
_REASONS = ("stop", "length", "tool-calls", "content-filter")
_MOST_TOKENS = 2**53
"""Most tokens of a usage: greater numbers are not exact in every reader of JSON."""
_MOST_ID = 2**32 - 1
_LEAST = -9999.0
"""The logarithm of an impossible token, which JSON cannot write as an infinite number."""


class GenerationStream(Stream):
    """Generated text in pieces."""

    __slots__ = ("finished",)

    def __init__(self, number: int, chunks: Any) -> None:
        super().__init__(number, chunks, content=wire.EVENT)
        self.finished = False

    def is_short(self, most: int) -> bool:
        """True if all pieces are there: text of at most so many characters, and perhaps the end."""
        if type(self.chunks) is not tuple and type(self.chunks) is not list:
            return False
        length = 0
        for piece in self.chunks:
            if type(piece) is str:
                length += len(piece)
            elif type(piece) is not Finish:
                return False
        return length <= most

    def _encoded(self, item: object) -> tuple[int, bytes | memoryview]:
        if self.finished:
            raise Unserialisable(f"{_name(item)} comes after the Finish, which is the last piece")
        if type(item) is str or isinstance(item, str):
            payload = _utf8(item)
            return (wire.TEXT, payload) if len(payload) <= wire.MAX_CHUNK else (wire.BYTES, memoryview(payload))
        if isinstance(item, _BYTES):
            return wire.BYTES, memoryview(bytes(item))
        self.finished = isinstance(item, Finish)
        payload = _json.encode_text(event(item)).encode()  # its keys are known: no two are equal
        if len(payload) > wire.MAX_CHUNK:
            raise Unserialisable(f"{_name(item)} of {len(payload)} bytes, at most {wire.MAX_CHUNK} are allowed")
        return wire.EVENT, payload


def make(number: int, result: Any, given: object) -> bytes | Stream:
    """The frames of a text generation's result. Raises `Unserialisable`."""
    if isinstance(result, str):
        return _text(number, result)
    if isinstance(result, Completion):
        if not isinstance(result.text, str):
            raise Unserialisable(f"the text of a Completion is str, not {_name(result.text)}")
        has_text_alone = result.finish is None and not (result.reasoning or result.tool_calls or result.tokens)
        return _text(number, result.text) if has_text_alone else GenerationStream(number, _pieces(result))
    if isinstance(result, _BYTES):
        return GenerationStream(number, (result,))
    if isinstance(result, Response):
        return error_of(number, result, "a text generation answers with text, pieces of it, or a Completion")
    if hasattr(result, "__next__") or hasattr(result, "__aiter__"):
        return GenerationStream(number, result)
    raise Unserialisable(
        f"a text generation returned {_name(result)}: return text or a Completion, or yield pieces ({_PIECES})"
    )


def _text(number: int, text: str) -> bytes | Stream:
    """The frame of a whole text; a long one is a stream."""
    payload = _utf8(text)
    if len(payload) > wire.MAX_CHUNK:
        return GenerationStream(number, (payload,))
    return wire.frame(wire.RESPONSE, wire.TEXT, 200, number, payload)


def _pieces(whole: Completion) -> Iterable[object]:
    """The pieces of a Completion whose parts have their types: a part of another type could pass for another piece."""
    if not isinstance(whole.reasoning, str):
        raise Unserialisable(f"the reasoning of a Completion is str, not {_name(whole.reasoning)}")
    if not (whole.finish is None or isinstance(whole.finish, Finish)):
        raise Unserialisable(f"`finish` of a Completion is a Finish, not {_name(whole.finish)}")
    _check_list("tool_calls", whole.tool_calls, ToolCall)
    _check_list("tokens", whole.tokens, Token)
    if whole.tokens and whole.text and b"".join(map(_bytes_of, whole.tokens)) != _utf8(whole.text):
        raise Unserialisable("the text of a Completion is not that of its tokens: give one of them")
    return whole.pieces()


def _check_list(name: str, given: object, kind: type) -> None:
    if not isinstance(given, (list, tuple)):
        raise Unserialisable(f"`{name}` of a Completion is a list, not {_name(given)}")
    for at, one in enumerate(given):
        if not isinstance(one, kind):
            raise Unserialisable(f"`{name}[{at}]` of a Completion is a {kind.__name__}, not {_name(one)}")


def _bytes_of(token: Token) -> bytes:
    if isinstance(token.text, str):
        return _utf8(token.text)
    if isinstance(token.text, _BYTES):
        return bytes(token.text)
    raise _no_text(token)


def _no_text(token: Token) -> Unserialisable:
    return Unserialisable(f"the text of a Token is str or bytes, not {_name(token.text)}")


def event(item: object) -> dict[str, object]:
    """A piece as an event. Raises `Unserialisable`."""
    if isinstance(item, Token):
        return _token(item)
    if isinstance(item, Reasoning):
        if not isinstance(item.text, str):
            raise Unserialisable(f"the text of a Reasoning is str, not {_name(item.text)}")
        return {"type": "reasoning", "text": _whole(item.text)}
    if isinstance(item, ToolCall):
        return _tool_call(item)
    if isinstance(item, Finish):
        return _finish(item)
    if isinstance(item, Completion):
        raise Unserialisable("a Completion is a whole answer: return it, or yield its pieces()")
    raise Unserialisable(f"pieces of generated text are {_PIECES}, not {_name(item)}")


def _token(token: Token) -> dict[str, object]:
    made: dict[str, object] = {"type": "token"}
    if isinstance(token.text, str):
        made["text"] = _whole(token.text)
    elif isinstance(token.text, _BYTES):
        made["text"], made["bytes"] = bytes(token.text).decode("utf-8", "replace"), list(bytes(token.text))
    else:
        raise _no_text(token)
    if token.id is not None:
        made["id"] = _count(token.id, "the id of a Token", _MOST_ID)
    if token.logprob is not None:
        made["logprob"] = _logprob(token.logprob)
    if token.top:
        made["top"] = _top(token.top)
    return made


def _top(top: Any) -> list[dict[str, object]]:
    pairs = list(top.items() if hasattr(top, "items") else top)
    if len(pairs) > wire.MAX_ALTERNATIVES:
        raise Unserialisable(f"`top` of a Token has {len(pairs)} tokens, at most {wire.MAX_ALTERNATIVES} can be sent")
    try:
        return [{"text": _display(text), "logprob": _logprob(logprob)} for text, logprob in pairs]
    except (TypeError, ValueError) as err:
        raise Unserialisable(f"`top` of a Token is pairs of text and log probability: {err}") from None


def _display(text: object) -> str:
    if isinstance(text, _BYTES):
        return bytes(text).decode("utf-8", "replace")
    if not isinstance(text, str):
        raise TypeError(f"text is str, not {_name(text)}")
    return _whole(text)


def _logprob(value: Any) -> float:
    number = float(value)
    if number != number or number == float("inf"):
        raise Unserialisable(f"{number} is no log probability")
    return max(number, _LEAST)


def _tool_call(call: ToolCall) -> dict[str, object]:
    if not isinstance(call.name, str) or not call.name:
        raise Unserialisable(f"the name of a ToolCall is the name of a function, not {call.name!r}")
    made: dict[str, object] = {"type": "tool-call", "name": _whole(call.name)}
    if isinstance(call.arguments, str):
        made["arguments"] = _whole(call.arguments)
    elif hasattr(call.arguments, "keys"):
        try:
            made["arguments"] = _json.encode(call.arguments, "arguments").decode()
        except (TypeError, ValueError, RecursionError) as err:
            raise Unserialisable(
                f"the arguments of the ToolCall {call.name!r} cannot be written as JSON: {err}"
            ) from None
    else:
        raise Unserialisable(f"the arguments of a ToolCall are a dict or JSON text, not {_name(call.arguments)}")
    if call.id is not None:
        if not isinstance(call.id, str):
            raise Unserialisable(f"the id of a ToolCall is text, not {_name(call.id)}")
        made["id"] = _whole(call.id)
    for name in ("name", "id"):
        if len(_utf8(str(made.get(name, "")))) > wire.MAX_NAME:
            raise Unserialisable(f"the {name} of a ToolCall is longer than {wire.MAX_NAME} bytes")
    return made


def _finish(finish: Finish) -> dict[str, object]:
    made: dict[str, object] = {"type": "finish"}
    if finish.reason is not None:
        reason = finish.reason.replace("_", "-") if isinstance(finish.reason, str) else finish.reason
        if reason not in _REASONS:
            raise Unserialisable(f"the reason of a Finish is one of {', '.join(_REASONS)}, not {finish.reason!r}")
        made["reason"] = reason
    if finish.usage is not None:
        made["usage"] = usage(finish.usage)
    return made


def usage(value: object) -> dict[str, int]:
    """Usage as JSON. Raises `Unserialisable`."""
    if not isinstance(value, Usage):
        raise Unserialisable(f"usage is a Usage, not {_name(value)}")
    return {name: _count(amount, f"`{name}` of a Usage", _MOST_TOKENS) for name, amount in vars(value).items()}


def _count(value: Any, what: str, most: int) -> int:
    try:
        number: int = value.__index__()
    except (AttributeError, TypeError):
        raise Unserialisable(f"{what} is a number from 0 to {most}, not {value!r}") from None
    if not 0 <= number <= most:  # not repeated: Python writes no number of many thousands of digits
        raise Unserialisable(f"{what} has to be from 0 to {most}")
    return number


def _utf8(text: str) -> bytes:
    try:
        return str.encode(text)  # a subclass may encode in another way
    except UnicodeEncodeError as err:
        raise Unserialisable(f"the text cannot be written as UTF-8: {err.reason} at character {err.start}") from None


def _whole(text: str) -> str:
    _utf8(text)
    return text


def _name(value: object) -> str:
    return "None" if value is None else type(value).__qualname__
