"""Calls of the handler for generated text, and the answer made of them.

All choices are generated one after the other. A stream has the first events of all choices first, then each choice as a
whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time

from omni import _json, _received, generation
from omni._engine import wire
from omni._engine.answer import Stream
from omni._run import refusal
from omni._run.guard import Guard, Limits
from omni._run.openai import sampling
from omni._run.openai.encoder import Choice
from omni.generation import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

    from omni._run.answer import Answer
    from omni._run.handling import Handling
    from omni._run.job import Head
    from omni._run.manifest import Manifest
    from omni._run.openai.encoder import Encoder
    from omni._run.openai.sampling import Generation
    from omni._run.template import ChatTemplate
    from omni.generation import TextGeneration
    from omni.request import Request

BYTES_PER_TOKEN = 4
"""Bytes of a prompt that count as one token where the handler does not count."""
_CALLS = (
    "the local run does not parse tool calls out of a model's text: a node does. Where the handler yields `ToolCall` "
    'itself, `[chat] tool-parser = "none"` says so'
)


class Text:
    """A request for generated text, whose answer has the form of any API."""

    def __init__(
        self, head: Head, asked: Generation, encoder: type[Encoder], manifest: Manifest, template: ChatTemplate
    ) -> None:
        self.head = head
        self.model = asked.model
        self._asked = asked
        self._encoder = encoder
        self._manifest = manifest
        self._template = template

    def check(self) -> None:
        """Checks that the model and the local run can honour the request. Raises `Refused`."""
        sampling.check_abilities(self._asked, self._manifest.honours)
        first = self._asked.first
        if first.tools and first.tool_choice != "none" and not self._manifest.calls_itself:
            raise refusal.unsupported("tools", _CALLS)

    def answer(self, calls: Handling, client: Answer) -> None:
        """Answers the request."""
        asked = self._asked
        encoder = self._encoder(self.head.id_letters, int(time.time()), asked)
        prompts = [self._prepared(calls, one) for one in asked.inputs]
        requests = [(prompt, number) for prompt in prompts for number in range(asked.choices)]
        usage, whole = Usage(), []
        for index, (prompt, number) in enumerate(requests):
            guard, collected = Guard(self._limits(prompt)), Choice()
            with contextlib.closing(self._pieces(calls, prompt)) as given:
                for delta in guard.deltas(given):
                    collected.add(delta)
                    if asked.stream:
                        self._begin(encoder, client)
                        for event in encoder.deltas(index, delta):
                            client.event(_json.encode(event))
            collected.reason = guard.reason
            self._check_format(collected)
            add(usage, guard.usage, is_first=number == 0)
            if asked.stream:
                self._begin(encoder, client)
                for event in encoder.finish(index, guard.reason):
                    client.event(_json.encode(event))
            else:
                whole.append(collected)
        if asked.stream:
            for event in encoder.end(usage):
                client.event(_json.encode(event))
            client.end()
            return
        calls.in_time()
        value = encoder.whole(whole, usage)
        if encoder.in_envelope:
            client.whole(wire.json_response(0, _json.encode(value)))
        else:
            client.json(value)

    def _begin(self, encoder: Encoder, client: Answer) -> None:
        if client.opened:
            return
        client.open_events()
        for event in encoder.start():
            client.event(_json.encode(event))

    def _prepared(self, calls: Handling, given: TextGeneration) -> TextGeneration:
        """The request as the handler gets it: messages are rendered, unless the model renders them."""
        asked = self._asked
        if given.messages is None:
            return given
        if self._manifest.renders_itself:
            variables = dict(asked.variables)
            effort = variables.pop("reasoning_effort", None)
            return dataclasses.replace(
                given,
                parallel_tool_calls=asked.parallel_calls,
                template_variables=variables,
                reasoning_effort=effort if isinstance(effort, str) else None,
                continue_final_message=asked.continues,
            )
        tools = given.tools if given.tool_choice != "none" else []
        prompt = calls.run(self._template.render, given.messages, tools, asked.variables, asked.continues)
        return dataclasses.replace(given, prompt=prompt, messages=None)

    def _limits(self, given: TextGeneration) -> Limits:
        counts = "max-tokens" in self._manifest.honours
        pieces = None if counts else given.sampling.max_tokens
        return Limits(given.stop, pieces, _tokens(given), None if self._asked.parallel_calls else 1)

    def _pieces(self, calls: Handling, given: TextGeneration) -> Generator[generation.Piece, None, None]:
        return pieces(calls, self.head.request(generation.to_json(given), "text-generation", self._asked.session))

    def _check_format(self, choice: Choice) -> None:
        """Refuses an answer that is no JSON object where one was asked for, unless the model keeps the form itself. An
        answer of calls, or one that was cut, has another form."""
        form = self._asked.first.response_format
        if form is None or form.type != "json_object" or "json-object" in self._manifest.honours:
            return
        if choice.reason != "stop":
            return
        try:
            is_object = isinstance(_json.decode(choice.text.encode()), dict)
        except (ValueError, RecursionError):
            is_object = False
        if not is_object:
            raise refusal.unsendable("it is no JSON object, which `response_format` asks for")


def pieces(calls: Handling, request: Request) -> Generator[generation.Piece, None, None]:
    """The pieces of generated text that the handler answers with."""
    last = calls.call(request)
    _, _, content = _received.opened(last)
    if not isinstance(content, Stream) and content[0][0] == wire.TEXT:
        yield _received.generated(*content[0])
        return
    if not isinstance(last, Stream) or last.content != wire.EVENT:
        raise refusal.unsendable(
            "the handler of a model that generates text has to return text, or to yield it; its parameter has the "
            "annotation `TextGeneration`"
        )
    for flags, payload in calls.pieces(last):
        yield _received.generated(flags, payload)


def add(total: Usage, part: Usage, is_first: bool) -> None:
    """Adds the usage of a choice. The prompt counts with the first of its choices."""
    total.completion_tokens += part.completion_tokens
    total.reasoning_tokens += part.reasoning_tokens
    if is_first:
        total.prompt_tokens += part.prompt_tokens
        total.cached_tokens += part.cached_tokens


def _tokens(given: TextGeneration) -> int:
    if given.prompt_tokens is not None:
        return len(given.prompt_tokens)
    data = _json.encode(given.messages) if given.prompt is None else given.prompt.encode("utf-8", "replace")
    return -(-len(data) // BYTES_PER_TOKEN)
