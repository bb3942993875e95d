"""Text generation by the server: the body of a request, and the events of its answer as pieces. Pure.

A prompt goes to `/v1/completions`, messages to `/v1/chat/completions`. The answer is always a stream, so that there is
one way only, and a request that is cancelled ends at once. Usage is always asked for: the node reports it to whom asks.
"""

from __future__ import annotations

from omni import _json
from omni._engine.openai.failure import error_of_value
from omni._engine.openai.http import ServerError
from omni.generation import Finish, Reasoning, Token, ToolCall, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from omni.generation import Piece, TextGeneration

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MAX_CALLS = 256
"""Most tool calls of an answer."""
MAX_ARGUMENTS = 128 * 1024
"""Characters of the arguments of one: what a frame takes."""
_REASONS = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool-calls",
    "function_call": "tool-calls",
    "content_filter": "content-filter",
}
_GIVEN_UP = ("abort", "error")
"""Reasons of vLLM and SGLang for an answer that is not complete."""
_HELD_TOKENS = 16
"""Most tokens that are parts of one character."""


def path_of(given: TextGeneration) -> str:
    """Where a request goes."""
    return COMPLETIONS if given.messages is None else CHAT


def body_of(given: TextGeneration, model: str) -> dict[str, Any]:
    """The body of a request to the server, whose own name for its model is `model`."""
    body: dict[str, Any] = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    if given.messages is None:
        body["prompt"] = given.prompt if given.prompt is not None else given.prompt_tokens
        if given.logprobs is not None:
            body["logprobs"] = given.logprobs
    else:
        body["messages"] = given.messages
        _add_chat(body, given)
    for name, value in vars(given.sampling).items():
        if value is not None and value is not False and value != {}:
            body[name] = value
    if given.sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in given.sampling.logit_bias.items()}
    if given.sampling.repetition_penalty is not None:
        body["repeat_penalty"] = given.sampling.repetition_penalty  # llama.cpp's name
    if given.stop:
        body["stop"] = given.stop
    if given.response_format is not None:
        body["response_format"] = {"type": given.response_format.type}
        if given.response_format.type == "json_schema":
            body["response_format"]["json_schema"] = {"name": "answer", "schema": given.response_format.schema}
    return body


def _add_chat(body: dict[str, Any], given: TextGeneration) -> None:
    """Adds the parameters that only a chat has."""
    if given.tools:
        body["tools"] = given.tools
        body["tool_choice"] = given.tool_choice
        if not given.parallel_tool_calls:
            body["parallel_tool_calls"] = False
    if given.logprobs is not None:
        body["logprobs"] = True
        body["top_logprobs"] = given.logprobs
    variables = given.template_variables
    if given.reasoning_effort == "none":  # which servers know by these variables of templates
        variables = {"enable_thinking": False, "thinking": False, **variables}
    elif given.reasoning_effort is not None:
        body["reasoning_effort"] = given.reasoning_effort
    if variables:
        body["chat_template_kwargs"] = variables
    if given.continue_final_message:
        body["continue_final_message"] = True
        body["add_generation_prompt"] = False


class Answer:
    """An answer as its events come."""

    __slots__ = ("_calls", "_held", "_places", "_reason", "_usage")

    def __init__(self) -> None:
        self._calls: dict[int, tuple[Any, str, str]] = {}
        """Id, name and arguments of the calls, in their order."""
        self._places: dict[int, int] = {}
        """Place of the call that the server has at an index now."""
        self._held: list[Token] = []
        """Tokens of a character that is not complete."""
        self._reason: str | None = None
        self._usage: Usage | None = None

    def pieces_of(self, data: bytes) -> Sequence[Piece]:
        """The pieces of one event. Raises `ServerError`, and what the server reports as its error."""
        try:
            event = _json.decode(data)
        except (ValueError, RecursionError) as err:
            raise ServerError(f"an event of the server is no JSON: {err}") from None
        if not isinstance(event, dict):
            raise ServerError("an event of the server is no JSON object")
        if event.get("error") is not None:
            raise error_of_value(500, event)
        usage = event.get("usage")
        if isinstance(usage, dict):
            self._usage = usage_of(usage)
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            return ()
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            self._reason = reason
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = {"content": choice.get("text")}
        found: list[Piece] = []
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(reasoning, str) and reasoning:
            found.append(Reasoning(reasoning))
        content = delta.get("content")
        if isinstance(content, str):
            found += self._content(content, choice.get("logprobs"))
        calls = delta.get("tool_calls")
        if isinstance(calls, list) and calls:
            self._add_calls(calls)
        return found

    def ending(self) -> Iterator[Piece]:
        """The last pieces, after the last event. Raises `ServerError` if the server has not ended its answer."""
        if self._reason is None:
            raise ServerError("the server ended its answer in the middle")
        for _, (identifier, name, arguments) in sorted(self._calls.items()):
            yield ToolCall(name, arguments or "{}", identifier)
        if self._reason in _GIVEN_UP:
            raise ServerError(f"the server gave the request up: {self._reason}")
        reason = _REASONS.get(self._reason)
        yield Finish("tool-calls" if self._calls and reason == "stop" else reason, self._usage)

    def _content(self, content: str, logprobs: Any) -> list[Piece]:
        """A content with its tokens. Those of a character that is not complete come with an empty content: they are
        held until the character is there."""
        told = [*self._held, *tokens_of(logprobs)] if logprobs is not None else self._held
        self._held = []
        if not content:
            self._held = told[:_HELD_TOKENS]
            return []
        data = b"".join(token.text if isinstance(token.text, bytes) else token.text.encode() for token in told)
        # Other tokens than the text's: a part of them was a marker that the server has read.
        return list(told) if told and data.decode("utf-8", "replace") == content else [content]

    def _add_calls(self, calls: list[Any]) -> None:
        for call in calls:
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict):
                raise ServerError("a tool call of the server has no function")
            index, name, arguments = call.get("index", 0), function.get("name"), function.get("arguments")
            if not isinstance(index, int):
                raise ServerError("a tool call of the server has an index that is no number")
            place, told = self._places.get(index), call.get("id")
            if place is None or (told and self._calls[place][0] not in (None, told)):
                # Some servers give every call the same index, or none: another id is another call.
                place = self._places[index] = len(self._calls)
                if place >= MAX_CALLS:
                    raise ServerError(f"the server's answer has more than {MAX_CALLS} tool calls")
                self._calls[place] = (None, "", "")
            held = self._calls[place]
            identifier = held[0] or told or None
            whole = held[2] + (arguments if isinstance(arguments, str) else "")
            if len(whole) > MAX_ARGUMENTS:
                raise ServerError(f"the arguments of a tool call have more than {MAX_ARGUMENTS} characters")
            self._calls[place] = (identifier, held[1] or (name if isinstance(name, str) else ""), whole)


def usage_of(told: dict[str, Any]) -> Usage:
    """Tokens as the server reports them; what it does not report is 0."""

    def count(place: Any, name: str) -> int:
        value = place.get(name) if isinstance(place, dict) else None
        return value if type(value) is int and 0 <= value <= 2**53 else 0

    return Usage(
        count(told, "prompt_tokens"),
        count(told, "completion_tokens"),
        count(told.get("prompt_tokens_details"), "cached_tokens"),
        count(told.get("completion_tokens_details"), "reasoning_tokens"),
    )


def tokens_of(logprobs: Any) -> list[Token]:
    """The tokens of an event, in either form."""
    if not isinstance(logprobs, dict):
        return []
    if isinstance(logprobs.get("content"), list):
        return [_token(entry) for entry in logprobs["content"] if isinstance(entry, dict)]
    return _columns(logprobs) if isinstance(logprobs.get("tokens"), list) else []


def _token(entry: dict[str, Any]) -> Token:
    """A token in the form of chats, which llama.cpp has for completions, too."""
    top = [
        (str(one.get("token", "")), _logprob(one)) for one in entry.get("top_logprobs") or () if isinstance(one, dict)
    ]
    identifier = entry.get("id")
    return Token(_text(entry), identifier if type(identifier) is int else None, _logprob(entry), top)


def _text(entry: dict[str, Any]) -> str | bytes:
    """The bytes of a token that is no whole characters; else its text."""
    told = entry.get("bytes")
    try:
        data = bytes(told) if isinstance(told, list) else str(entry.get("token", "")).encode()
        return data.decode()
    except UnicodeDecodeError:
        return data
    except (TypeError, ValueError):
        return str(entry.get("token", ""))


def _columns(logprobs: dict[str, Any]) -> list[Token]:
    """Tokens in the form of completions: a list for each property."""
    texts = [text for text in logprobs["tokens"] if isinstance(text, str)]
    values, tops = logprobs.get("token_logprobs") or [], logprobs.get("top_logprobs") or []
    made = []
    for at, text in enumerate(texts):
        value = values[at] if at < len(values) else None
        top = tops[at] if at < len(tops) and isinstance(tops[at], dict) else {}
        pairs = [(name, float(amount)) for name, amount in top.items() if isinstance(amount, (int, float))]
        made.append(Token(text, None, float(value) if isinstance(value, (int, float)) else None, pairs))
    return made


def _logprob(entry: dict[str, Any]) -> float:
    value = entry.get("logprob")
    return float(value) if isinstance(value, (int, float)) else float("-inf")
