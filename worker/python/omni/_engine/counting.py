"""The number of a prompt's tokens, by the model's own function `count_tokens`."""

from __future__ import annotations

from omni._engine.answer import Stream, whole
from omni._engine.entry import Entry
from omni.errors import HTTPError, Unserialisable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from omni.request import Request


def entry(function: Callable[..., Any] | None) -> Entry:
    """The entry of `count_tokens(text_or_messages, context)`; without a function, all requests for it are refused."""

    def take(request: Request) -> Any:
        if function is None:
            raise HTTPError(501, "this model cannot count tokens: it has no function `count_tokens`")
        from omni.generation import TextGeneration

        given = TextGeneration.from_json(request.body.json, request)
        if given.prompt_tokens is not None:
            return given.prompt_tokens
        return given.prompt if given.prompt is not None else given.messages

    def count(given: Any, context: Any) -> Any:
        tokens = isinstance(given, list) and all(isinstance(token, int) for token in given)
        assert function is not None
        return len(given) if tokens else function(given, context)

    made = Entry(count, "count_tokens")
    made.take, made.make, made.reads_body = take, _frames, True
    return made


def _frames(number: int, result: Any, given: object) -> bytes | Stream:
    try:
        tokens = result.__index__()
    except (AttributeError, TypeError):
        tokens = -1
    if tokens < 0 or isinstance(result, bool):
        raise Unserialisable(f"count_tokens returned {result!r}: a number from 0 on is needed")
    return whole(number, {"tokens": tokens})
