"""Generated text in the native form of the run API, for models of that kind (`gateway/workers-ai/src/text`)."""

from __future__ import annotations

from omni import _json
from omni._run import parameters, refusal
from omni._run.openai import chat, message, sampling
from omni._run.openai.encoder import Encoder, usage_of
from omni._run.openai.sampling import Generation
from omni.generation import TextGeneration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from omni._run.guard import Call, Delta
    from omni._run.openai.encoder import Choice
    from omni._run.parameters import Parameters
    from omni.generation import Usage

    Json = dict[str, Any]

_KNOWN = (
    *sampling.SAMPLING,
    "chat_template_kwargs",
    "functions",
    "max_completion_tokens",
    "messages",
    "metadata",
    "model",
    "n",
    "parallel_tool_calls",
    "prompt",
    "prompt_cache_key",
    "raw",
    "reasoning_effort",
    "response_format",
    "stop",
    "stream",
    "stream_options",
    "tool_choice",
    "tools",
    "user",
)
_PLACE = "this form of an answer has no place for them: use `/v1/chat/completions`"
_UNSUPPORTED = {
    "audio": "no model here answers with sound",
    "chat_template": "a request cannot bring its own template",
    "function_call": "use `tool_choice`",
    "guided_json": "use `response_format`",
    "image": "send it in a message, as a part of the type `image_url`",
    "input": "it belongs to `/v1/responses`",
    "logprobs": _PLACE,
    "lora": "adapters are models of their own",
    "top_logprobs": _PLACE,
}


def read(model: str, body: bytes) -> Generation:
    """Reads the body of a request. Raises `Refused`."""
    given = parameters.of_body(body, _KNOWN, _UNSUPPORTED)
    given.integer("n", 1, 1)
    stream = given.flag("stream") or False
    asked = TextGeneration(
        sampling=sampling.read_sampling(given, chat.max_tokens(given), hottest=5),
        stop=sampling.read_stop(given),
        response_format=sampling.read_format(given),
        stream=stream,
    )
    _read_input(given, asked)
    effort = given.word("reasoning_effort", chat.EFFORTS)
    if effort is None and given.is_null("reasoning_effort"):
        effort = "none"
    return Generation(
        model,
        [asked],
        variables=chat.read_variables(given, effort),
        stream=stream,
        parallel_calls=given.flag("parallel_tool_calls") is not False,
        session=sampling.read_session(given, "prompt_cache_key", "user"),
    )


def _read_input(given: Parameters, asked: TextGeneration) -> None:
    """Reads the prompt, or the messages and tools."""
    prompt, raw = given.text("prompt"), given.flag("raw") or False
    if prompt is not None and given.has("messages"):
        raise refusal.invalid("prompt", "`prompt` and `messages` exclude each other")
    if raw and prompt is None:
        raise refusal.invalid("raw", "`raw` needs `prompt`")
    if raw:
        asked.prompt = prompt
        return
    asked.messages = message.read_messages(given) if prompt is None else [{"role": "user", "content": prompt}]
    if given.has("tools") and given.has("functions"):
        raise refusal.invalid("functions", "`tools` and `functions` exclude each other")
    name = "functions" if given.has("functions") else "tools"
    asked.tools = message.read_tools(given, name, any_form=True)
    if asked.tools or given.get("tool_choice") not in ("auto", "none"):
        asked.tool_choice = message.read_choice(given, asked.tools)


class NativeEncoder(Encoder):
    """Answers in the native form."""

    in_envelope = True

    def __init__(self, id: str, created: int, asked: Generation) -> None:
        self._is_json = asked.first.response_format is not None
        self._calls: list[Call] = []
        self._reason = "stop"

    def deltas(self, choice: int, delta: Delta) -> Iterable[Json]:
        if delta.reasoning:
            yield {"choices": [{"index": 0, "delta": {"reasoning_content": delta.reasoning}}]}
        if delta.text:
            yield {"response": delta.text}
        if delta.call is not None:
            self._calls.append(delta.call)

    def finish(self, choice: int, reason: str) -> Iterable[Json]:
        self._reason = reason
        return ()

    def end(self, usage: Usage) -> Iterable[Json]:
        return [_answer("", self._calls, self._reason, None, usage)]

    def whole(self, choices: list[Choice], usage: Usage) -> Json:
        choice = choices[0]
        reasoned = None
        if choice.reasoning:
            told = {"role": "assistant", "content": choice.text, "reasoning_content": choice.reasoning}
            reasoned = [{"index": 0, "message": told, "finish_reason": choice.reason}]
        response = _value(choice.text) if self._is_json else choice.text
        return _answer(response, choice.calls, choice.reason, reasoned, usage)


def _answer(response: Any, calls: list[Call], reason: str, reasoned: list[Json] | None, usage: Usage) -> Json:
    made: Json = {"response": response}
    if calls:
        made["tool_calls"] = [
            {"index": call.index, "id": call.id, "name": call.name, "arguments": _value(call.arguments)}
            for call in calls
        ]
    made["finish_reason"] = reason
    if reasoned is not None:
        made["choices"] = reasoned
    return {**made, "usage": usage_of(usage)}


def _value(text: str) -> Any:
    """The value of JSON text, or the text itself if it is none."""
    try:
        return _json.decode(text.encode())
    except (ValueError, RecursionError):
        return text
