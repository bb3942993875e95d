"""Answers of chat completions and of completions: events, or one document.

Invariants (clients broke on servers without them):
- Every event has `id`, `object`, `created`, `model`, and each choice its `index`.
- `role` is in the first delta of a choice alone, `id`, `type` and `name` of a call in its first alone.
- Usage is in one event, the last before `[DONE]`, with no choices, and only if it was asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from omni._run.guard import Call, Delta
    from omni._run.openai.sampling import Generation
    from omni.generation import Token, Usage

    Json = dict[str, Any]

_NO_LOGPROB = -9999.0
"""Log probability of a token that has none: clients know it as "improbable"."""


@dataclass
class Choice:
    """A whole answer."""

    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    reason: str = "stop"

    def add(self, delta: Delta) -> None:
        """Adds a part."""
        self.text += delta.text
        self.reasoning += delta.reasoning
        self.tokens += delta.tokens
        if delta.call is not None:
            self.calls.append(delta.call)


class Encoder(ABC):
    """Answers to one request, in the form of an API."""

    in_envelope = False
    """The document is the result in the envelope of the Workers AI API."""

    @abstractmethod
    def __init__(self, id: str, created: int, asked: Generation) -> None:
        """`id`: letters of which ids are made; `created`: seconds since 1970."""

    def start(self) -> Iterable[Json]:
        """The first events."""
        return ()

    @abstractmethod
    def deltas(self, choice: int, delta: Delta) -> Iterable[Json]:
        """The events of a part."""

    @abstractmethod
    def finish(self, choice: int, reason: str) -> Iterable[Json]:
        """The events of a choice's end."""

    @abstractmethod
    def end(self, usage: Usage) -> Iterable[Json]:
        """The events of the answer's end."""

    @abstractmethod
    def whole(self, choices: list[Choice], usage: Usage) -> Json:
        """The document."""


class ChatEncoder(Encoder):
    """Answers of chat completions."""

    def __init__(self, id: str, created: int, asked: Generation) -> None:
        self._head: Json = {"id": f"chatcmpl-{id}", "object": "chat.completion.chunk", "created": created}
        self._head["model"] = asked.model
        self._count = asked.choices
        self._named = isinstance(asked.first.tool_choice, dict)
        self._wants_tokens = asked.first.logprobs is not None
        self._sends_usage = asked.stream_usage

    def start(self) -> Iterable[Json]:
        for choice in range(self._count):
            yield self._event(choice, {"role": "assistant", "content": ""})

    def deltas(self, choice: int, delta: Delta) -> Iterable[Json]:
        if delta.reasoning:
            yield self._event(choice, {"reasoning_content": delta.reasoning, "reasoning": delta.reasoning})
        if delta.text or (delta.tokens and self._wants_tokens):
            event = self._event(choice, {"content": delta.text})
            event["choices"][0]["logprobs"] = self._logprobs(delta.tokens)
            yield event
        if delta.call is not None:
            call = delta.call
            function = {"name": call.name, "arguments": ""}
            begun = {"index": call.index, "id": call.id, "type": "function", "function": function}
            yield self._event(choice, {"tool_calls": [begun]})
            rest = {"index": call.index, "function": {"arguments": call.arguments}}
            yield self._event(choice, {"tool_calls": [rest]})

    def finish(self, choice: int, reason: str) -> Iterable[Json]:
        return [self._event(choice, {}, self._reason(reason))]

    def end(self, usage: Usage) -> Iterable[Json]:
        return [{**self._head, "choices": [], "usage": usage_of(usage)}] if self._sends_usage else ()

    def whole(self, choices: list[Choice], usage: Usage) -> Json:
        made = [self._choice(index, choice) for index, choice in enumerate(choices)]
        return {**self._head, "object": "chat.completion", "choices": made, "usage": usage_of(usage)}

    def _choice(self, index: int, choice: Choice) -> Json:
        message: Json = {"role": "assistant", "content": choice.text if choice.text or not choice.calls else None}
        if choice.reasoning:
            message["reasoning_content"] = message["reasoning"] = choice.reasoning
        message["refusal"] = None
        if choice.calls:
            message["tool_calls"] = [_call(call) for call in choice.calls]
        reason, logprobs = self._reason(choice.reason), self._logprobs(choice.tokens)
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}

    def _event(self, choice: int, delta: Json, reason: str | None = None) -> Json:
        made = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": reason}
        return {**self._head, "choices": [made]}

    def _reason(self, reason: str) -> str:
        """A call of a function that the client named ends with `stop`, as OpenAI has it."""
        return "stop" if reason == "tool_calls" and self._named else reason

    def _logprobs(self, tokens: list[Token]) -> Json | None:
        if not tokens or not self._wants_tokens:
            return None
        content = [
            {**_logprob(token.text, token.logprob), "top_logprobs": [_logprob(*top) for top in _top(token)]}
            for token in tokens
        ]
        return {"content": content, "refusal": None}


class CompletionEncoder(Encoder):
    """Answers of completions. Choices are numbered by prompt, then by answer."""

    def __init__(self, id: str, created: int, asked: Generation) -> None:
        self._head: Json = {"id": f"cmpl-{id}", "object": "text_completion", "created": created, "model": asked.model}
        self._echo = [one.prompt or "" for one in asked.inputs for _ in range(asked.choices)] if asked.echo else []
        self._offsets = [0] * len(asked.inputs) * asked.choices
        """Place of each choice's next token in its text, in characters."""
        self._wants_tokens = asked.first.logprobs is not None
        self._sends_usage = asked.stream_usage

    def start(self) -> Iterable[Json]:
        for choice, text in enumerate(self._echo):
            yield self._event(choice, text)

    def deltas(self, choice: int, delta: Delta) -> Iterable[Json]:
        if delta.text or (delta.tokens and self._wants_tokens):
            yield self._event(choice, delta.text, self._logprobs(choice, delta.tokens))

    def finish(self, choice: int, reason: str) -> Iterable[Json]:
        return [self._event(choice, "", None, _text_reason(reason))]

    def end(self, usage: Usage) -> Iterable[Json]:
        return [{**self._head, "choices": [], "usage": usage_of(usage)}] if self._sends_usage else ()

    def whole(self, choices: list[Choice], usage: Usage) -> Json:
        made = [self._choice(index, choice) for index, choice in enumerate(choices)]
        return {**self._head, "choices": made, "usage": usage_of(usage)}

    def _choice(self, index: int, choice: Choice) -> Json:
        echo = self._echo[index] if self._echo else ""
        logprobs = self._logprobs(index, choice.tokens)
        text, reason = f"{echo}{choice.text}", _text_reason(choice.reason)
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _event(self, choice: int, text: str, logprobs: Json | None = None, reason: str | None = None) -> Json:
        made = {"index": choice, "text": text, "logprobs": logprobs, "finish_reason": reason}
        return {**self._head, "choices": [made]}

    def _logprobs(self, choice: int, tokens: list[Token]) -> Json | None:
        if not tokens or not self._wants_tokens:
            return None
        made: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token in tokens:
            text = _text(token.text)
            made["tokens"].append(text)
            made["token_logprobs"].append(_finite(token.logprob))
            made["top_logprobs"].append({name: _finite(logprob) for name, logprob in _top(token)})
            made["text_offset"].append(self._offsets[choice])
            self._offsets[choice] += len(text)
        return made


def usage_of(usage: Usage) -> Json:
    """Usage in the form of both."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _call(call: Call) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _text_reason(reason: str) -> str:
    return "stop" if reason == "tool_calls" else reason


def _top(token: Token) -> Iterable[tuple[str, float]]:
    return token.top.items() if hasattr(token.top, "items") else token.top


def _text(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode("utf-8", "replace")


def _logprob(text: str | bytes, logprob: float | None) -> Json:
    data = text.encode() if isinstance(text, str) else text
    return {"token": _text(text), "logprob": _finite(logprob), "bytes": list(data)}


def _finite(logprob: float | None) -> float:
    return _NO_LOGPROB if logprob is None or logprob - logprob != 0 else logprob
