"""Text generation: the request as a handler gets it, and the pieces of its answer.

from omni import Finish, TextGeneration

def handle_request(request: TextGeneration, context):
    for text in model.generate(request.prompt, temperature=request.sampling.temperature):
        yield text
    yield Finish("stop")
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Union

from omni._fields import Fields
from omni.request import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Json = dict[str, Any]


@dataclass
class Sampling:
    """Sampling parameters. None: the client leaves the choice to the model."""

    max_tokens: int | None = None
    """Most tokens of the answer."""
    min_tokens: int | None = None
    """Fewest tokens of the answer."""
    temperature: float | None = None
    """0 to 2; 0 is greedy."""
    top_p: float | None = None
    """Share of probability that is sampled from, above 0 and up to 1."""
    top_k: int | None = None
    """Number of tokens that is sampled from."""
    min_p: float | None = None
    """Least probability relative to the most probable token, 0 to 1."""
    frequency_penalty: float | None = None
    """-2 to 2."""
    presence_penalty: float | None = None
    """-2 to 2."""
    repetition_penalty: float | None = None
    """Above 0; 1 is none."""
    seed: int | None = None
    """Seed of the random numbers."""
    logit_bias: dict[int, float] = field(default_factory=dict)
    """Bias of tokens by their ids, -100 to 100."""
    ignore_eos: bool = False
    """Generation beyond end tokens, up to `max_tokens`."""


@dataclass
class ResponseFormat:
    """Form that the answer must have."""

    type: str
    """`"json_object"` or `"json_schema"`."""
    schema: Any = None
    """JSON Schema, with `"json_schema"`."""


@dataclass
class TextGeneration:
    """A request for generated text: a handler whose first parameter has this annotation gets it.

    Exactly one of `prompt`, `prompt_tokens` and `messages` is there: by default the node renders the messages of a chat
    to a prompt; a model with `[chat] render = "model"` gets the messages.
    """

    prompt: str | None = None
    """Rendered prompt."""
    prompt_tokens: list[int] | None = None
    """Tokens of the model's own vocabulary."""
    literals: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of bytes of the prompt, as UTF-8, that are plain text (see `prompt_parts`)."""
    messages: list[Json] | None = None
    """Messages in the form of the OpenAI API."""
    tools: list[Json] = field(default_factory=list)
    """Tools in the form of the OpenAI API. In a rendered prompt they are already."""
    tool_choice: str | Json = "auto"
    """`"auto"`, `"none"`, `"required"`, or `{"type": "function", "function": {"name": …}}`."""
    parallel_tool_calls: bool = True
    """False: the client takes one call at most."""
    template_variables: Json = field(default_factory=dict)
    """`chat_template_kwargs`: variables for the template of a model that renders the messages itself."""
    reasoning_effort: str | None = None
    """Effort of reasoning, such as `"low"`, for a model that renders the messages itself."""
    continue_final_message: bool = False
    """True: the last message, which is the assistant's, is to be continued."""
    sampling: Sampling = field(default_factory=Sampling)
    """Sampling parameters."""
    stop: list[str] = field(default_factory=list)
    """Texts that end the answer. The node cuts the answer there; a model that stops by itself saves time."""
    response_format: ResponseFormat | None = None
    """Form of the answer; None for any text."""
    logprobs: int | None = None
    """Number of alternatives that the client wants for each token; None: no log probabilities."""
    stream: bool = False
    """The client wants a stream. A handler may stream in any case."""
    request: Request = field(default_factory=Request, repr=False, compare=False)
    """The request itself: `id`, `headers`, `session`, `deadline`."""

    @property
    def cancelled(self) -> bool:
        """True once the client no longer waits."""
        return self.request.cancelled

    def prompt_parts(self) -> list[tuple[str, bool]]:
        """The prompt in parts: text, and True where it is plain text of a user, in which the tokenizer must read no
        special tokens."""
        data, parts, at = (self.prompt or "").encode(), [], 0
        for start, end in self.literals:
            parts += [(data[at:start].decode(), False), (data[start:end].decode(), True)]
            at = end
        parts.append((data[at:].decode(), False))
        return [part for part in parts if part[0]]

    @classmethod
    def from_json(cls, value: object, request: Request | None = None) -> TextGeneration:
        """Reads a body: as the node writes it, or with the sampling parameters beside the prompt. Raises
        `BadRequest`."""
        fields = Fields(value)
        made = cls(
            prompt=fields.get("prompt", "text"),
            prompt_tokens=fields.get("prompt_tokens", "a list of integers"),
            literals=_literals(fields),
            messages=fields.get("messages", "a list of objects"),
            tools=fields.get("tools", "a list of objects") or [],
            tool_choice=fields.raw("tool_choice") or "auto",
            parallel_tool_calls=fields.get("parallel_tool_calls", "true or false", True),
            template_variables=fields.get("template_variables", "an object") or {},
            reasoning_effort=fields.get("reasoning_effort", "text"),
            continue_final_message=fields.get("continue_final_message", "true or false", False),
            sampling=_sampling(fields),
            stop=_stop(fields),
            response_format=read_response_format(fields),
            logprobs=fields.get("logprobs", "an integer"),
            stream=fields.get("stream", "true or false", False),
            request=Request() if request is None else request,
        )
        if (made.prompt is not None) + (made.prompt_tokens is not None) + (made.messages is not None) != 1:
            raise fields.wrong("prompt", "or `prompt_tokens` or `messages` is needed, exactly one of them")
        return made


_SAMPLING = {
    "max_tokens": "an integer",
    "min_tokens": "an integer",
    "temperature": "a number",
    "top_p": "a number",
    "top_k": "an integer",
    "min_p": "a number",
    "frequency_penalty": "a number",
    "presence_penalty": "a number",
    "repetition_penalty": "a number",
    "seed": "an integer",
    "ignore_eos": "true or false",
}


def _sampling(fields: Fields) -> Sampling:
    given = fields.get("sampling", "an object")
    fields = fields if given is None else Fields(given, "sampling")
    made = Sampling()
    # A request has few of them.
    for name in fields.names():
        kind = _SAMPLING.get(name)
        if kind is not None:
            value = fields.get(name, kind)
            if value is not None:
                setattr(made, name, value)
    bias = fields.raw("logit_bias")
    if bias:
        made.logit_bias = _logit_bias(fields, bias)
    return made


def _logit_bias(fields: Fields, bias: Any) -> dict[int, float]:
    try:
        pairs = bias.items() if isinstance(bias, dict) else bias
        return {int(token): float(amount) for token, amount in pairs}
    except (TypeError, ValueError):
        raise fields.wrong("logit_bias", "is a list of pairs of a token's id and a number") from None


def _literals(fields: Fields) -> list[tuple[int, int]]:
    made: list[tuple[int, int]] = []
    for pair in fields.get("literals", "a list") or ():
        if not (isinstance(pair, list) and len(pair) == 2 and all(type(end) is int for end in pair)):
            raise fields.wrong("literals", "is a list of pairs of integers")
        if not (made[-1][1] if made else 0) <= pair[0] <= pair[1]:
            raise fields.wrong("literals", "has ranges in order that do not overlap")
        made.append((pair[0], pair[1]))
    return made


def _stop(fields: Fields) -> list[str]:
    stop = fields.raw("stop")
    if stop is None:
        return []
    return [stop] if isinstance(stop, str) else fields.get("stop", "a list of texts")


def read_response_format(fields: Fields) -> ResponseFormat | None:
    """The form of an answer, as the node or a client of the OpenAI API writes it. Raises `BadRequest`."""
    given = fields.get("response_format", "an object")
    if given is None or given.get("type") == "text":
        return None
    kind, schema = given.get("type"), given.get("schema", given.get("json_schema"))
    if kind not in ("json_object", "json_schema"):
        raise fields.wrong("response_format.type", 'is "json_object" or "json_schema"')
    if kind == "json_schema" and isinstance(schema, dict) and "schema" in schema and "schema" not in given:
        schema = schema["schema"]  # as the OpenAI API has it, with a name beside it
    if kind == "json_schema" and not isinstance(schema, (dict, bool)):
        raise fields.wrong("response_format.schema", "is missing: a JSON Schema is needed")
    return ResponseFormat(kind, schema)


@dataclass
class Usage:
    """Tokens of a request, as the model counts them."""

    prompt_tokens: int = 0
    """Tokens of the prompt, those from a cache included."""
    completion_tokens: int = 0
    """Tokens of the answer, reasoning included."""
    cached_tokens: int = 0
    """Tokens of the prompt that came from a cache."""
    reasoning_tokens: int = 0
    """Tokens of the reasoning."""


@dataclass
class Token:
    """A token of the answer: a handler yields it instead of text, to name the id and the log probability."""

    text: str | bytes
    """Text, or the bytes of a token that is no whole characters."""
    id: int | None = None
    """Id in the model's vocabulary."""
    logprob: float | None = None
    """Natural logarithm of the probability."""
    top: Sequence[tuple[str, float]] | Mapping[str, float] = ()
    """Most probable tokens at this position with their log probabilities, the most probable one first."""


@dataclass
class Reasoning:
    """Text of the reasoning, from models that separate it from the answer."""

    text: str
    """Text."""


@dataclass
class ToolCall:
    """A whole tool call, from models that parse the calls themselves. Others write calls as text, for the node."""

    name: str
    """Function."""
    arguments: str | Mapping[str, Any] = "{}"
    """Arguments: a dict, or JSON text."""
    id: str | None = None
    """Id; the node makes one where there is none."""


@dataclass
class Finish:
    """The end of an answer: the last piece. Without one, the node chooses the reason, and counts."""

    reason: str | None = None
    """`"stop"`, `"length"`, `"tool-calls"` or `"content-filter"`; an underscore counts as the hyphen."""
    usage: Usage | None = None
    """Tokens; None: the node counts."""


Piece = Union[str, bytes, Token, Reasoning, ToolCall, Finish]
"""Pieces of an answer."""


@dataclass
class Completion:
    """A whole answer."""

    text: str = ""
    """Text."""
    reasoning: str = ""
    """Reasoning before it."""
    tool_calls: list[ToolCall] = field(default_factory=list)
    """Tool calls."""
    finish: Finish | None = None
    """End."""
    tokens: list[Token] = field(default_factory=list)
    """Tokens of the text. A handler gives the text, the tokens, or both where they agree."""

    def pieces(self) -> list[Piece]:
        """The answer in pieces, in their order."""
        text: list[Piece] = list(self.tokens) if self.tokens else [self.text] if self.text else []
        reasoning: list[Piece] = [Reasoning(self.reasoning)] if self.reasoning else []
        return [*reasoning, *text, *self.tool_calls, *([] if self.finish is None else [self.finish])]


def to_json(value: TextGeneration) -> Json:
    """The body of a request, as the node writes it."""
    fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value) if one.name != "request"}
    fields["sampling"] = {
        name: amount for name, amount in vars(value.sampling).items() if amount is not None and name != "logit_bias"
    }
    if value.sampling.logit_bias:
        fields["sampling"]["logit_bias"] = [list(pair) for pair in value.sampling.logit_bias.items()]
    if value.response_format is not None:
        fields["response_format"] = {
            name: part for name, part in vars(value.response_format).items() if part is not None
        }
    return fields
