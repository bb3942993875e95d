"""A handler call without a connection: for the local run and for tests."""

from __future__ import annotations

from omni._engine.batch import only

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from omni._engine.answer import Stream
    from omni._engine.model import Model
    from omni.context import Context
    from omni.request import Request


def frames(
    model: Model,
    request: Request,
    context: Context,
    call: Callable[..., Any],
    wait: Callable[[Any], Any],
) -> bytes | Stream:
    """The last frame of a request, or its stream. `call` calls the model's code, `wait` awaits what that returns. A
    handler of batches gets a batch of one."""
    entry = model.counter if request.counts_tokens else model.single or model.batch
    assert entry is not None
    given = request if entry.take is None else call(entry.take, request)
    result = call(entry.function, [given] if entry.is_batch else given, context)
    if hasattr(result, "__await__"):
        result = wait(result)
    return entry.frames(0, only(result) if entry.is_batch else result, given)
