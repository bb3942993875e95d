"""Requests for chat completions."""

from __future__ import annotations

from omni._run import parameters, refusal
from omni._run.openai import message, sampling
from omni._run.openai.sampling import Generation
from omni.generation import TextGeneration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from omni._run.parameters import Parameters

    Json = dict[str, Any]

_MOST_TOP_LOGPROBS = 20
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Efforts of reasoning."""
_KNOWN = (
    *sampling.COMMON,
    *sampling.SAMPLING,
    "add_generation_prompt",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "logprobs",
    "max_completion_tokens",
    "messages",
    "modalities",
    "parallel_tool_calls",
    "prompt_cache_retention",
    "reasoning_effort",
    "safety_identifier",
    "store",
    "tool_choice",
    "tools",
    "top_logprobs",
    "verbosity",
)
_UNSUPPORTED = {
    **sampling.UNSUPPORTED,
    "audio": "no model here answers with sound",
    "bad_words": "use `logit_bias`",
    "best_of": "use `n`",
    "chat_template": "a request cannot bring its own template",
    "echo": "it belongs to `/v1/completions`",
    "enable_thinking": "send it in `chat_template_kwargs`",
    "function_call": "use `tool_choice`",
    "functions": "use `tools`",
    "moderation": "there is no moderation here",
    "prediction": "no model here takes predicted output",
    "thinking": "use `reasoning_effort`, or send it in `chat_template_kwargs`",
    "web_search_options": "the node does not search the web",
}
_TAKEN = ("add_generation_prompt", "chat_template", "continue_final_message", "messages", "tokenize", "tools")


def read(body: bytes) -> Generation:
    """Reads the body of a request. Raises `Refused`."""
    given = parameters.of_body(body, _KNOWN, _UNSUPPORTED)
    model = sampling.read_model(given)
    _check_harmless(given)
    messages = message.read_messages(given)
    tools = message.read_tools(given)
    stream, stream_usage = sampling.read_stream(given)
    parallel = given.flag("parallel_tool_calls")
    asked = TextGeneration(
        messages=messages,
        tools=tools,
        tool_choice=message.read_choice(given, tools),
        sampling=sampling.read_sampling(given, max_tokens(given)),
        stop=sampling.read_stop(given),
        response_format=sampling.read_format(given),
        logprobs=_logprobs(given),
        stream=stream,
    )
    return Generation(
        model,
        [asked],
        given.integer("n", 1, sampling.MOST_CHOICES) or 1,
        variables=read_variables(given, given.word("reasoning_effort", EFFORTS)),
        continues=_continues(given, messages),
        stream=stream,
        stream_usage=stream_usage,
        parallel_calls=parallel is not False,
        session=sampling.read_session(given, "prompt_cache_key", "user"),
    )


def _check_harmless(given: Parameters) -> None:
    given.object("metadata")
    given.text("safety_identifier")
    given.harmless("modalities", (["text"], []), "models answer with `text` alone")
    given.harmless("prompt_cache_retention", ("in_memory", "in-memory"), "only `in_memory` is supported")
    given.harmless("service_tier", ("auto", "default"), "only `auto` and `default` are supported")
    given.harmless("store", (False,), "answers are not stored: send `false`")
    given.harmless("verbosity", ("medium",), "only `medium` is supported: ask for length in a message")


def max_tokens(given: Parameters) -> int | None:
    """Most tokens of the answer, by either of their names."""
    new, old = given.integer("max_completion_tokens", 1), given.integer("max_tokens", 1)
    if new is not None and old is not None and new != old:
        raise refusal.invalid("max_tokens", "`max_tokens` and `max_completion_tokens` differ: send one of them")
    return old if new is None else new


def _logprobs(given: Parameters) -> int | None:
    top = given.integer("top_logprobs", 0, _MOST_TOP_LOGPROBS)
    if given.flag("logprobs"):
        return top or 0
    if top:
        raise refusal.invalid("top_logprobs", "`top_logprobs` needs `logprobs` to be `true`")
    return None


def _continues(given: Parameters, messages: list[Json]) -> bool:
    continues, adds = given.flag("continue_final_message") or False, given.flag("add_generation_prompt")
    if continues and adds:
        text = "`add_generation_prompt` and `continue_final_message` exclude each other"
        raise refusal.invalid("add_generation_prompt", text)
    if continues and messages[-1]["role"] != "assistant":
        text = "`continue_final_message` needs a last message of the assistant"
        raise refusal.invalid("continue_final_message", text)
    if adds is False and not continues:
        text = "`add_generation_prompt` may be `false` only with `continue_final_message`"
        raise refusal.unsupported("add_generation_prompt", text)
    return continues


def read_variables(given: Parameters, effort: str | None) -> Json:
    """Variables of the chat template. `effort`: that of reasoning."""
    made: Json = {}
    if effort is not None:
        made["reasoning_effort"] = effort
    if effort == "none":
        made["enable_thinking"] = made["thinking"] = False
    told: Json = given.typed("chat_template_kwargs", dict, "an object") or {}
    for name in told:
        if name in _TAKEN:
            path = f"chat_template_kwargs.{name}"
            raise refusal.unsupported(path, f"`{name}` cannot be set by `chat_template_kwargs`")
    made.update(told)
    if given.has("documents"):
        made["documents"] = given.items("documents", 1 << 16)
    return made
