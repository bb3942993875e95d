"""JSON bodies as pydantic models. Called only for a handler whose annotation is one: pydantic is no dependency."""

from __future__ import annotations

from omni.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from omni.request import Request

_MOST = 10
"""Fields that a refusal names at most."""


def reader(model: Any) -> Callable[[Request], Any]:
    """A function that reads a request's body as this model. It raises `BadRequest`, which names the fields."""
    read = getattr(model, "model_validate_json", None) or model.parse_raw  # pydantic 2, or 1

    def take(request: Request) -> Any:
        try:
            return read(request.body.bytes)
        except Exception as err:
            details = getattr(err, "errors", None)
            if type(err).__name__ != "ValidationError" or not callable(details):
                raise
            raise _refusal(details()) from None

    return take


def _refusal(details: list[dict[str, Any]]) -> BadRequest:
    named = [(_path(detail.get("loc", ())), str(detail.get("msg", "invalid"))) for detail in details]
    parts = [f"`{path}`: {message}" if path else message for path, message in named[:_MOST]]
    if len(named) > _MOST:
        parts.append(f"and {len(named) - _MOST} more")
    first = next((path for path, _ in named if path), None)
    return BadRequest("the body is not what the model takes: " + "; ".join(parts), first)


def _path(location: tuple[object, ...]) -> str:
    """The place of an error, such as `items[2].name`."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part != "__root__":
            path += f".{part}" if path else str(part)
    return path
