"""Parameters that all requests for generated text have, and what a model has to honour for them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from omni._run import parameters, refusal
from omni._run.parameters import Parameters
from omni.generation import ResponseFormat, Sampling, TextGeneration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    Json = dict[str, Any]

MOST_CHOICES = 16
_MOST_STOPS = 16
_LONGEST_STOP = 1024
_LONGEST_SESSION = 512
_LONGEST_MODEL = 256
_MOST_BIASES = 1024
_TOKEN_ID = re.compile("0|[1-9][0-9]{0,9}")
_LARGEST_ID = 2**32 - 1
SAMPLING = (
    "frequency_penalty",
    "ignore_eos",
    "logit_bias",
    "max_tokens",
    "min_p",
    "min_tokens",
    "presence_penalty",
    "repetition_penalty",
    "seed",
    "temperature",
    "top_k",
    "top_p",
)
"""Names of the sampling parameters."""
COMMON = (
    "metadata",
    "model",
    "n",
    "prompt_cache_key",
    "response_format",
    "service_tier",
    "stop",
    "stream",
    "stream_options",
    "user",
)
"""Names of the other parameters that all requests have."""
UNSUPPORTED = {
    "allowed_token_ids": "use `logit_bias`",
    "guided_choice": "use `response_format` with an `enum` in its schema",
    "guided_grammar": "use `response_format`",
    "guided_json": "use `response_format`",
    "guided_regex": "use `response_format` with a `pattern` in its schema",
    "include_stop_str_in_output": "stop strings never appear in the answer",
    "length_penalty": "there is no beam search",
    "prompt_logprobs": "log probabilities are those of the answer",
    "skip_special_tokens": "special tokens never appear in the answer",
    "stop_token_ids": "use `stop`",
    "structured_outputs": "use `response_format`",
    "truncate_prompt_tokens": "prompts are never cut",
    "use_beam_search": "use `n`",
}
_SCHEMA = (
    "this model does not keep its answers to a schema, and the local run does not validate them: a node does. Where "
    'the model does, `[generation] honours = ["json-schema"]` says so'
)


@dataclass
class Generation:
    """A request for generated text."""

    model: str
    """Model, by the name that the client sent."""
    inputs: list[TextGeneration]
    """Inputs; each is answered `choices` times."""
    choices: int = 1
    variables: Json = field(default_factory=dict)
    """Variables of the chat template."""
    continues: bool = False
    """The last message is to be continued."""
    echo: bool = False
    """The prompt comes before each answer."""
    stream: bool = False
    stream_usage: bool = False
    """Usage at the end of a stream."""
    parallel_calls: bool = True
    session: str | None = None

    @property
    def first(self) -> TextGeneration:
        """The first input; the others have the same parameters."""
        return self.inputs[0]


def read_model(given: Parameters) -> str:
    """The name of the model."""
    return given.text("model", _LONGEST_MODEL, required=True) or ""


def read_session(given: Parameters, *names: str) -> str | None:
    """The session of a request: the first of these names that is there."""
    told = (given.text(name, _LONGEST_SESSION) for name in names)
    return next((name for name in told if name), None)


def read_sampling(given: Parameters, max_tokens: int | None, hottest: int = 2) -> Sampling:
    """The sampling parameters. `hottest`: the highest temperature."""
    made = Sampling(
        max_tokens=max_tokens,
        min_tokens=given.integer("min_tokens"),
        temperature=given.number("temperature", 0, hottest),
        top_p=given.share("top_p", 1),
        top_k=given.integer("top_k", -1),
        min_p=given.number("min_p", 0, 1),
        frequency_penalty=given.number("frequency_penalty", -2, 2),
        presence_penalty=given.number("presence_penalty", -2, 2),
        repetition_penalty=given.share("repetition_penalty", 10),
        seed=given.integer("seed", -(2**63), 2**63 - 1),
        logit_bias=_logit_bias(given),
        ignore_eos=given.flag("ignore_eos") or False,
    )
    if made.top_k is not None and made.top_k < 1:
        made.top_k = None
    if made.min_tokens and max_tokens is not None and made.min_tokens > max_tokens:
        message = f"`min_tokens` is {made.min_tokens}, more than `max_tokens`, which is {max_tokens}"
        raise refusal.invalid("min_tokens", message)
    return made


def _logit_bias(given: Parameters) -> dict[int, float]:
    bias = given.typed("logit_bias", dict, "an object") or {}
    if len(bias) > _MOST_BIASES:
        raise refusal.invalid("logit_bias", f"`logit_bias`: it has more than {_MOST_BIASES} tokens")
    if not all(map(_TOKEN_ID.fullmatch, bias)) or any(int(token) > _LARGEST_ID for token in bias):
        raise refusal.invalid("logit_bias", "`logit_bias`: its keys have to be token ids")
    amounts = Parameters(bias, None, at="logit_bias")
    return {int(token): amounts.number(token, -100, 100) or 0.0 for token in bias}


def read_stop(given: Parameters) -> list[str]:
    """The stop strings."""
    told = given.typed("stop", (str, list), "a string or an array of strings")
    stops: list[Any] = [told] if isinstance(told, str) else told or []
    parameters.count("stop", stops, 0, _MOST_STOPS)
    for at, stop in enumerate(stops):
        if not isinstance(stop, str):
            message = f"`stop[{at}]` is {parameters.shown(stop)}: it has to be a string"
            raise refusal.wrong_type(f"stop[{at}]", message)
        if not stop or len(stop.encode("utf-8", "replace")) > _LONGEST_STOP:
            raise refusal.invalid("stop", "`stop` is empty" if not stop else "`stop` is longer than 1024 bytes")
    return stops


def read_format(given: Parameters) -> ResponseFormat | None:
    """The form that the answer must have; None for any text."""
    if not given.has("response_format"):
        return None
    told = Parameters(given.get("response_format"), ("type", "json_schema"), at="response_format")
    kind = told.text("type", required=True)
    if kind not in ("text", "json_object", "json_schema"):
        message = "the type of the format has to be `text`, `json_object` or `json_schema`"
        raise refusal.invalid("response_format.type", message)
    if kind != "json_schema":
        if told.has("json_schema"):
            message = "`response_format.json_schema` needs `response_format.type` to be `json_schema`"
            raise refusal.invalid("response_format.json_schema", message)
        return None if kind == "text" else ResponseFormat(kind)
    if not told.has("json_schema"):
        raise refusal.missing("response_format.json_schema")
    schema = told.object("json_schema")
    return ResponseFormat(kind, schema["schema"] if schema.get("schema") is not None else schema)


def read_stream(given: Parameters) -> tuple[bool, bool]:
    """A stream is asked for, and its usage."""
    stream = given.flag("stream") or False
    if not given.has("stream_options"):
        return stream, False
    known = ("include_usage", "include_obfuscation", "continuous_usage_stats")
    options = Parameters(given.get("stream_options"), known, at="stream_options")
    if not stream:
        raise refusal.invalid("stream_options", "`stream_options` needs `stream` to be `true`")
    options.flag("include_obfuscation")
    if options.flag("continuous_usage_stats"):
        message = "usage is sent once, at the end of the stream"
        raise refusal.unsupported("stream_options.continuous_usage_stats", message)
    return stream, options.flag("include_usage") or False


def check_abilities(asked: Generation, honours: Iterable[str]) -> None:
    """Refuses what the model cannot honour, by `[generation] honours` of its manifest."""
    known, given = set(honours), asked.first
    sampling = given.sampling
    parts = [
        part["type"]
        for message in given.messages or ()
        if isinstance(message.get("content"), list)
        for part in message["content"]
    ]
    demands = (
        (sampling.seed is not None, "seed", "seed"),
        (given.logprobs is not None, "logprobs", "logprobs"),
        (bool(sampling.logit_bias), "logit-bias", "logit_bias"),
        (bool(sampling.min_tokens), "min-tokens", "min_tokens"),
        (sampling.top_k is not None, "top-k", "top_k"),
        (bool(sampling.min_p), "min-p", "min_p"),
        (bool(sampling.frequency_penalty), "penalties", "frequency_penalty"),
        (bool(sampling.presence_penalty), "penalties", "presence_penalty"),
        (sampling.repetition_penalty not in (None, 1), "repetition-penalty", "repetition_penalty"),
        (sampling.ignore_eos, "ignore-eos", "ignore_eos"),
    )
    for is_asked, ability, name in demands:
        if is_asked and ability not in known:
            raise refusal.unsupported(name, f"this model does not support `{name}`: leave it out")
    has_schema = given.response_format is not None and given.response_format.type == "json_schema"
    tokens = any(one.prompt_tokens is not None for one in asked.inputs)
    for is_asked, ability, name, message in (
        (tokens, "token-prompts", "prompt", "this model takes text, not token ids"),
        ("image_url" in parts, "images", "messages", "this model takes no images"),
        ("input_audio" in parts, "audio", "messages", "this model takes no audio"),
        (has_schema, "json-schema", "response_format", _SCHEMA),
    ):
        if is_asked and ability not in known:
            raise refusal.unsupported(name, message)
