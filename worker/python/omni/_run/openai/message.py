"""Messages of a conversation, the tools that are offered, and the choice between text and calls."""

from __future__ import annotations

import string

from omni import _json
from omni._run import refusal
from omni._run.parameters import Parameters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

_MOST_MESSAGES = 16384
_MOST_CALLS = 256
_MOST_TOOLS = 512
_LONGEST_FUNCTION = 128
_ROLES = ("system", "developer", "user", "assistant", "tool")
_ALLOWED = frozenset(string.ascii_letters + string.digits + "_-.:/")
_PARTS = ("type", "text", "refusal", "image_url", "input_audio", "cache_control")
_FILES = {"file": "send the text of the file", "video_url": "no model here takes videos"}
_TEXT_ALONE = ("system", "developer", "assistant")


def read_messages(given: Parameters) -> list[Json]:
    """The messages of a conversation, as a handler and a template get them. Raises `Refused`."""
    messages = given.items("messages", _MOST_MESSAGES, required=True)
    return [_message(value, f"messages[{at}]") for at, value in enumerate(messages)]


def _message(value: Any, at: str) -> Json:
    fields = Parameters(value, None, at=at)
    role = fields.text("role")
    if role is None:
        raise refusal.missing(fields.path("role"))
    if role == "function":
        message = "messages of the role `function` are not supported: use `tool` with a `tool_call_id`"
        raise refusal.unsupported(fields.path("role"), message)
    if role not in _ROLES:
        message = "the role has to be `system`, `developer`, `user`, `assistant` or `tool`"
        raise refusal.invalid(fields.path("role"), message)
    for name, reason in (
        ("audio", "no model here has answered with sound"),
        ("function_call", "use `tool_calls`"),
    ):
        if fields.has(name):
            raise refusal.unsupported(fields.path(name), f"`{name}` is not supported in a message: {reason}")
    made = {
        name: field for name, field in value.items() if field is not None and name not in ("annotations", "refusal")
    }
    content = _content(fields, role)
    if content is None:
        content = fields.text("refusal")
    if content is None and role != "assistant":
        raise refusal.missing(fields.path("content"))
    if content is not None:
        made["content"] = content
    for name in ("name", "tool_call_id", "reasoning_content", "reasoning", "thinking"):
        fields.text(name)
    if fields.has("tool_calls"):
        if role != "assistant":
            message = "only messages of the assistant have `tool_calls`"
            raise refusal.invalid(fields.path("tool_calls"), message)
        path = fields.path("tool_calls")
        calls = fields.items("tool_calls", _MOST_CALLS)
        made["tool_calls"] = [_call(call, f"{path}[{number}]") for number, call in enumerate(calls)]
        if not calls:
            del made["tool_calls"]
    return made


def _content(fields: Parameters, role: str) -> Any:
    content = fields.typed("content", (str, list), "a string or an array of parts")
    if not isinstance(content, list):
        return content
    path = fields.path("content")
    if not content and role != "assistant":
        raise refusal.invalid(path, f"`{path}` is empty")
    return [_part(part, role, f"{path}[{at}]") for at, part in enumerate(content)]


def _part(value: Any, role: str, at: str) -> Json:
    part = Parameters(value, _PARTS, _FILES, at)
    kind = part.text("type", required=True)
    if kind in ("text", "refusal"):
        text = part.text(kind)
        if text is None:
            raise refusal.missing(part.path(kind))
        return {"type": "text", "text": text}
    if kind not in ("image_url", "input_audio"):
        message = "the type of a part has to be `text`, `refusal`, `image_url` or `input_audio`"
        raise refusal.invalid(part.path("type"), message)
    if role in _TEXT_ALONE:
        raise refusal.invalid(part.path("type"), f"messages of the role `{role}` have text alone")
    if not part.has(kind):
        raise refusal.missing(part.path(kind))
    if kind == "input_audio":
        sound = Parameters(part.get(kind), ("data", "format"), at=part.path(kind))
        data, form = sound.text("data", required=True), sound.text("format", 16, required=True)
        return {"type": kind, kind: {"data": data, "format": form}}
    image = Parameters(part.get(kind), ("url", "detail"), at=part.path(kind))
    if image.text("detail") not in (None, "auto", "low", "high"):
        raise refusal.invalid(image.path("detail"), "`detail` has to be `auto`, `low` or `high`")
    url = image.text("url", required=True) or ""
    head, comma, data = url.partition(",")
    is_data = head.startswith("data:image/") and head.endswith(";base64") and comma and data
    if not (is_data or url.startswith(("https://", "http://"))):
        path = image.path("url")
        message = f"`{path}` has to be an `https://` address or a data URL like `data:image/png;base64,…`"
        raise refusal.invalid(path, message)
    return {"type": kind, kind: {"url": url}}


def _call(value: Any, at: str) -> Json:
    """A call that the assistant made: `{"id", "type", "function": {"name", "arguments"}}`, or without `function`."""
    call = Parameters(value, None, at=at)
    kind = call.text("type") or "function"
    if kind != "function":
        message = f"calls of the type `{kind[:32]}` are not supported: the type has to be `function`"
        raise refusal.unsupported(call.path("type"), message)
    function = call
    if call.has("function"):
        function = Parameters(call.get("function"), None, at=call.path("function"))
    elif not call.has("name"):
        raise refusal.missing(call.path("function"))
    name = function.text("name", required=True)
    arguments = function.get("arguments")
    if isinstance(arguments, dict):
        arguments = _json.encode(arguments).decode()
    if not isinstance(arguments, (str, type(None))):
        path = f"{at}.function.arguments"
        raise refusal.wrong_type(path, f"`{path}` has to be a string")
    made: Json = {"type": "function", "function": {"name": name, "arguments": arguments or "{}"}}
    identity = call.text("id")
    return made if identity is None else {"id": identity, **made}


def read_tools(given: Parameters, name: str = "tools", any_form: bool = False) -> list[Json]:
    """The tools of a request. `any_form`: functions alone are tools, too. Raises `Refused`."""
    tools: list[Json] = []
    names: set[str] = set()
    for at, value in enumerate(given.items(name, _MOST_TOOLS)):
        tool = Parameters(value, None, at=f"{name}[{at}]")
        if tool.text("type") != "function" and (tool.has("type") or not any_form):
            if not tool.has("type"):
                raise refusal.missing(tool.path("type"))
            raise refusal.unsupported(tool.path("type"), "only tools of the type `function` are supported")
        if any_form and not tool.has("function"):
            value = {"type": "function", "function": {key: part for key, part in value.items() if key != "type"}}
            tool = Parameters(value, None, at=f"{name}[{at}]")
        if not tool.has("function"):
            raise refusal.missing(tool.path("function"))
        tools.append({"type": "function", **value})
        function = Parameters(tool.get("function"), None, at=tool.path("function"))
        called = function.text("name", _LONGEST_FUNCTION, required=True) or ""
        if not _ALLOWED.issuperset(called):
            path = function.path("name")
            raise refusal.invalid(path, f"`{path}` may have letters, digits and `_-.:/`")
        function.object("parameters")
        if called in names:
            raise refusal.invalid(f"{name}[{at}]", f"there are two tools with the name `{called}`")
        names.add(called)
    return tools


def read_choice(given: Parameters, tools: list[Json]) -> str | Json:
    """The choice between text and calls. Raises `Refused`."""
    choice = given.typed("tool_choice", (str, dict), "a word or an object")
    if choice is None:
        return "auto"
    if not tools:
        raise refusal.invalid("tool_choice", "`tool_choice` needs `tools`")
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required", "any"):
            message = "`tool_choice` has to be `auto`, `none`, `required` or the name of a function in an object"
            raise refusal.invalid("tool_choice", message)
        return "required" if choice == "any" else choice
    named = Parameters(choice, None, at="tool_choice")
    if named.text("type") != "function":
        raise refusal.unsupported("tool_choice.type", "only a choice of the type `function` is supported")
    function = Parameters(named.get("function") or choice, None, at="tool_choice.function")
    name = function.text("name", required=True)
    if all(tool["function"]["name"] != name for tool in tools):
        raise refusal.invalid("tool_choice", "`tool_choice` names a function that is not among the `tools`")
    return {"type": "function", "function": {"name": name}}
