"""The chat template of a model, rendered by jinja2 from the model's own environment, with what Hugging Face's
transformers gives to templates. A node renders with an engine of its own, which gives the same text.

Differences to a node: a template may take as long as the request's deadline allows, and control tokens in a client's
text stay as they are.
"""

from __future__ import annotations

import json
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from omni import _log
from omni._run import refusal
from omni._run.answer import FAILED
from omni._run.refusal import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Json = dict[str, Any]

_NEEDED = (
    "the chat template of this model is rendered with jinja2, which is not installed here: run `pip install jinja2` "
    "(a node needs no package for it)"
)
_NONE = "the model has no chat template: its completions take a `prompt` instead of messages"
_FILE = "chat_template.jinja"
_CONFIG = "tokenizer_config.json"
REASONING = "reasoning stays in the text here: a node separates it"
_REASONING = ("reasoning_content", "reasoning", "thinking")


class ChatTemplate:
    """The template of a model's directory, compiled when it is first needed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._compiled: dict[str, Any] | None = None
        """Templates by name."""
        self._source = ""
        self._special: dict[str, str] = {}
        """Special tokens by name."""

    def render(
        self, messages: list[Json], tools: list[Json], variables: Json | None = None, continues: bool = False
    ) -> str:
        """The prompt of a conversation. Raises `Refused`."""
        if self._compiled is None:
            self._compiled = _reported(self._load)
        template = self._compiled.get("tool_use" if tools else "default") or self._compiled["default"]
        known: Json = {
            **self._special,
            "messages": [self._message(message) for message in messages],
            "tools": tools or None,
            "documents": None,
            "add_generation_prompt": not continues,
        }
        variables = _checked(variables or {}, known)
        prompt: str = _reported(template.render, {**known, **variables})
        return _cut_behind(prompt, known["messages"][-1]) if continues else prompt

    def notes(self) -> Iterator[str]:
        """Differences to a node, for the author of a model whose messages are rendered."""
        try:
            source = "\n".join(self._sources(self._config()).values())
        except (OSError, ValueError, TypeError, KeyError, Refused):
            return  # the first request says so
        if find_spec("jinja2") is None:
            yield _NEEDED
        if "<think>" in source:
            yield REASONING

    def problem(self) -> str | None:
        """The reason why a node refuses the model for its template, as far as jinja2 is here to find it."""
        file = self._directory / _FILE
        try:
            sources = self._sources(self._config())
            environment = _environment()
        except Refused as refused:
            return None if refused.message in (_NONE, _NEEDED) else f"{file.parent}: {refused.message}"
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as err:
            return f"the chat template in {self._directory} cannot be read: {type(err).__name__}: {err}"
        mistake = import_module("jinja2").TemplateSyntaxError
        for name, source in sources.items():
            try:
                environment.from_string(source)
            except mistake as err:
                place = f"{file}:{err.lineno}" if file.is_file() else f"{file.with_name(_CONFIG)}: template `{name}`"
                return f"{place}: the template cannot be used: {err.message}"
        return None

    def _config(self) -> Json:
        path = self._directory / _CONFIG
        config: Json = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return config

    def _sources(self, config: Json) -> dict[str, str]:
        """Templates by name. Raises `Refused`."""
        own = self._directory / _FILE
        found = own.read_text(encoding="utf-8") if own.is_file() else config.get("chat_template")
        if not found:
            raise refusal.unsupported("messages", _NONE)
        sources = {"default": found} if isinstance(found, str) else {one["name"]: one["template"] for one in found}
        if "default" not in sources:
            raise refusal.unsupported("messages", "the chat templates of this model have none named `default`")
        return sources

    def _load(self) -> dict[str, Any]:
        config = self._config()
        sources = self._sources(config)
        for name, token in config.items():
            text = token.get("content") if isinstance(token, dict) else token
            if name.endswith("_token") and isinstance(text, str):
                self._special[name] = text
        self._source = "\n".join(sources.values())
        environment = _environment()
        return {name: environment.from_string(source) for name, source in sources.items()}

    def _message(self, message: Json) -> Json:
        """A message in the form that templates expect: fields without null, text instead of its parts, arguments of
        calls as objects."""
        made = {name: value for name, value in message.items() if value is not None}
        if made.get("role") == "developer" and "developer" not in self._source:
            made["role"] = "system"
        content = made.get("content", "")
        if isinstance(content, list) and all(part["type"] == "text" for part in content):
            content = "\n".join(part["text"] for part in content)
        elif isinstance(content, list) and not _reads_parts(self._source):
            raise refusal.invalid("messages", "the chat template of this model takes text alone")
        made["content"] = content
        reasoning = next((made.pop(name) for name in _REASONING if name in made), None)
        if reasoning is not None:
            named = [name for name in _REASONING if name in self._source]
            made.update(dict.fromkeys(named or _REASONING[:1], reasoning))
        if "tool_calls" in made:
            made["tool_calls"] = [_call(call) for call in made["tool_calls"]]
        return made


def _reads_parts(source: str) -> bool:
    """True if the template reads the parts of a content itself."""
    return any(text in source for text in (".type", "['type']", '["type"]'))


def _call(call: Json) -> Json:
    function = dict(call["function"])
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except ValueError:
        arguments = None
    if isinstance(arguments, dict):
        function["arguments"] = arguments
    return {**call, "function": function}


def _checked(variables: Json, known: Json) -> Json:
    for name in variables:
        if name in known and name != "documents":
            path = f"chat_template_kwargs.{name}"
            raise refusal.unsupported(path, f"`{name}` cannot be set by `chat_template_kwargs`")
    return variables


def _cut_behind(prompt: str, last: Json) -> str:
    """The prompt up to the end of the last message, which is to be continued."""
    text = str(last.get("content") or "").rstrip()
    at = prompt.rfind(text)
    if not text or at < 0:
        raise refusal.invalid("continue_final_message", "the last message has no text that can be continued")
    return prompt[: at + len(text)]


def _reported(step: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a step. What it raises is in the log, unless it is a refusal."""
    try:
        return step(*arguments)
    except Refused:
        raise
    except _Raised as err:
        raise refusal.invalid("messages", str(err)) from None
    except Exception as err:
        _log.report("ERROR", "the conversation cannot be rendered\n" + _log.traceback_of(err, skip=1))
        raise Refused(500, refusal.FAILED, FAILED) from None


class _Raised(Exception):
    """A refusal by the template itself."""


def _raise(message: str) -> None:
    raise _Raised(message)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _environment() -> Any:
    try:
        sandbox: Any = import_module("jinja2.sandbox")
        extension: Any = import_module("jinja2.ext")
    except ImportError:
        raise Refused(501, refusal.MALFORMED, _NEEDED) from None

    class GenerationTag(extension.Extension):  # type: ignore[misc]
        """`{% generation %}`, which marks an answer for training and changes no text."""

        tags = frozenset(("generation",))

        def parse(self, parser: Any) -> Any:
            """The content of the tag."""
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, extension.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = time.strftime
    return environment
