"""Requests for completions: texts or token ids to go on from."""

from __future__ import annotations

from omni._run import parameters, refusal
from omni._run.openai import sampling
from omni._run.openai.sampling import Generation
from omni.generation import TextGeneration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Union

    from omni._run.parameters import Parameters

    Input = Union[str, list[int]]

_MOST_PROMPTS = 128
_MOST_ANSWERS = 256
_MOST_LOGPROBS = 20
_DEFAULT_MAX_TOKENS = 16
"""Tokens of an answer without `max_tokens`, as the API has it."""
_KNOWN = (*sampling.COMMON, *sampling.SAMPLING, "best_of", "echo", "logprobs", "prompt")
_UNSUPPORTED = {
    **sampling.UNSUPPORTED,
    "prompt_logprobs": "use `echo` with `logprobs`",
    "add_special_tokens": "the model decides",
    "messages": "they belong to `/v1/chat/completions`",
    "prompt_embeds": "send `prompt`",
    "suffix": "put the text into a prompt of the form that the model has for it",
    "tools": "they belong to `/v1/chat/completions`",
}


def read(body: bytes) -> Generation:
    """Reads the body of a request. Raises `Refused`."""
    given = parameters.of_body(body, _KNOWN, _UNSUPPORTED)
    model = sampling.read_model(given)
    given.object("metadata")
    given.harmless("service_tier", ("auto", "default"), "only `auto` and `default` are supported")
    choices = given.integer("n", 1, sampling.MOST_CHOICES) or 1
    best_of = given.integer("best_of", 0)
    if best_of is not None and best_of != choices:
        raise refusal.unsupported("best_of", "`best_of` has to be `n`: answers are not ranked")
    prompts = read_inputs(given, "prompt", _MOST_PROMPTS)
    if [] in prompts:
        raise refusal.invalid("prompt", "a prompt has no tokens")
    if len(prompts) * choices > _MOST_ANSWERS:
        answers = len(prompts) * choices
        message = f"`n` answers to each prompt are {answers}: there may be {_MOST_ANSWERS}"
        raise refusal.invalid("n", message)
    stream, stream_usage = sampling.read_stream(given)
    inputs = [_input(given, prompt, stream) for prompt in prompts]
    echo = given.flag("echo") or False
    if echo and inputs[0].logprobs is not None:
        message = "`echo` is not supported with `logprobs`: the prompt has no log probabilities"
        raise refusal.unsupported("echo", message)
    if echo and not all(isinstance(prompt, str) for prompt in prompts):
        raise refusal.unsupported("echo", "`echo` is not supported with token ids")
    session = sampling.read_session(given, "prompt_cache_key", "user")
    return Generation(model, inputs, choices, echo=echo, stream=stream, stream_usage=stream_usage, session=session)


def _input(given: Parameters, prompt: Input, stream: bool) -> TextGeneration:
    max_tokens = given.integer("max_tokens", 1)
    return TextGeneration(
        prompt=prompt if isinstance(prompt, str) else None,
        prompt_tokens=None if isinstance(prompt, str) else prompt,
        sampling=sampling.read_sampling(given, _DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens),
        stop=sampling.read_stop(given),
        response_format=sampling.read_format(given),
        logprobs=given.integer("logprobs", 0, _MOST_LOGPROBS),
        stream=stream,
    )


def read_inputs(given: Parameters, name: str, most: int) -> list[Input]:
    """Texts or token ids: a text, a list of texts, token ids, or lists of these. Raises `Refused`."""
    told = given.typed(name, (str, list), "a string, an array of strings, or token ids")
    if told is None:
        raise refusal.missing(name)
    inputs: list[Any] = [told] if isinstance(told, str) or (told and all(map(_is_token, told))) else told
    parameters.count(name, inputs, 1, most)
    kinds = {type(one) for one in inputs}
    ids = all(isinstance(one, list) and all(map(_is_token, one)) for one in inputs)
    if not (kinds == {str} or ids):
        message = f"`{name}`: an array has to have texts, token ids or arrays of token ids alone"
        raise refusal.invalid(name, message)
    return inputs


def _is_token(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 32
