"""Golden files of the codecs, read by the OpenAI and Anthropic clients as answers of a server.

Each stream and each whole answer of `gateway/*/src/**/snapshots` goes through the client's own transport, parser and
accumulator, without a node. Run by `tests/functional/clients.rs`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import anthropic
import httpx2  # comes with them
import openai
import pytest

GATEWAY = Path(__file__).parents[2] / "gateway"
CHAT = GATEWAY / "openai/src/chat/snapshots/omni_openai__chat__tests__"
COMPLETION = GATEWAY / "openai/src/completion/snapshots/omni_openai__completion__tests__"
RESPONSES = GATEWAY / "openai/src/responses/snapshots/omni_openai__responses__tests__"
MESSAGES = GATEWAY / "anthropic/src/snapshots/omni_anthropic__tests__"


def sections(base: Path, name: str) -> dict[str, str]:
    """Returns the shapes of a golden file by their names."""
    text = Path(f"{base}{name}.snap").read_text().split("---\n", 2)[2]
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], (part.rstrip("\n") + "\n\n" for part in parts[2::2]), strict=True))


def streams(base: Path) -> dict[str, str]:
    return sections(base, "streams_of_all_shapes")


def answers(base: Path) -> dict[str, str]:
    return sections(base, "whole_answers_of_all_shapes")


def transport(body: str, kind: str) -> httpx2.Client:
    def handle(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=body.encode(), headers={"content-type": kind})

    return httpx2.Client(transport=httpx2.MockTransport(handle))


def openai_client(body: str, kind: str = "application/json") -> openai.OpenAI:
    return openai.OpenAI(api_key="x", base_url="http://node/v1", http_client=transport(body, kind), max_retries=0)


def anthropic_client(body: str, kind: str = "application/json") -> anthropic.Anthropic:
    return anthropic.Anthropic(api_key="x", base_url="http://node", http_client=transport(body, kind), max_retries=0)


def by_name(shapes: dict[str, str]) -> list:
    assert len(shapes) > 10
    return [pytest.param(name, text, id=name) for name, text in shapes.items()]


EVENTS = "text/event-stream"
USER = [{"role": "user", "content": "hi"}]
TEXTS = {
    "text": 'Hél"lo\n',
    "empty": "",
    "reasoning": "4",
    "one tool": "I look.",
    "reasoning, text, tool": "So",
    "length": "Once upon",
    "stop string": "1, 2",
    "filtered": "I",
    "usage": "Hi",
    "logprobs": "Hi é",
    "two choices": "a",
}
CALLS = {
    "one tool": ['{"city": "Bern"}'],
    "two tools": ['{"city": "Bern"}', '{"city": "Genf"}'],
    "tool without arguments": ["{}"],
    "reasoning, text, tool": ["{}"],
}
BROKEN_OFF = ("length", "filtered", "two choices")
REASONING = {"reasoning": "Let me think", "reasoning, text, tool": "Hm"}


def check_message(name: str, content: str | None, calls: list[str]) -> None:
    assert (content or "") == TEXTS.get(name, "")
    assert calls == CALLS.get(name, [])


@pytest.mark.parametrize(("name", "text"), by_name(streams(CHAT)))
def test_chat_streams(name: str, text: str) -> None:
    client = openai_client(text, EVENTS)
    if name == "error":
        with pytest.raises(openai.APIError, match="died"):
            list(client.chat.completions.create(model="m", messages=USER, stream=True))
        return
    for chunk in client.chat.completions.create(model="m", messages=USER, stream=True):
        chunk.model_validate(chunk.model_dump(), strict=True)
    if name in BROKEN_OFF:  # the accumulator raises on them, as it does with OpenAI's own
        return
    with openai_client(text, EVENTS).chat.completions.stream(model="m", messages=USER, n=2) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    choice = final.choices[0]
    assert choice.message.role == "assistant"
    calls = choice.message.tool_calls or []
    check_message(name, choice.message.content, [call.function.arguments for call in calls])
    assert [call.function.name for call in calls] == ["weather"] * len(calls)
    assert len({call.id for call in calls}) == len(calls)
    assert (final.usage is not None) == (name == "usage")
    assert getattr(choice.message, "reasoning_content", "") == REASONING.get(name, "")


@pytest.mark.parametrize(("name", "text"), by_name(answers(CHAT)))
def test_chat_answers(name: str, text: str) -> None:
    answer = openai_client(text).chat.completions.create(model="m", messages=USER)
    answer.model_validate(answer.model_dump(), strict=True)
    message = answer.choices[0].message
    check_message(name, message.content, [call.function.arguments for call in message.tool_calls or []])
    assert answer.usage is not None and answer.usage.total_tokens == 17


@pytest.mark.parametrize(("name", "text"), by_name(streams(COMPLETION)))
def test_completion_streams(name: str, text: str) -> None:
    stream = openai_client(text, EVENTS).completions.create(model="m", prompt="p", stream=True)
    if name == "error":
        with pytest.raises(openai.APIError, match="died"):
            list(stream)
        return
    chunks = list(stream)  # the client's type has no `null` for the end that has not come, which OpenAI sends too
    texts = [choice.text for chunk in chunks for choice in chunk.choices if choice.index == 0]
    assert "".join(texts) == TEXTS.get(name, "")
    assert chunks[-1].choices == [] or chunks[-1].choices[0].finish_reason


@pytest.mark.parametrize(("name", "text"), by_name(answers(COMPLETION)))
def test_completion_answers(name: str, text: str) -> None:
    answer = openai_client(text).completions.create(model="m", prompt="p")
    answer.model_validate(answer.model_dump(), strict=True)
    assert answer.choices[0].text == TEXTS.get(name, "")


@pytest.mark.parametrize(("name", "text"), by_name(streams(RESPONSES)))
def test_response_streams(name: str, text: str) -> None:
    client = openai_client(text, EVENTS)
    if name == "error":
        events = list(client.responses.create(model="m", input="hi", stream=True))
        assert [event.type for event in events[-2:]] == ["error", "response.failed"]
        return
    for event in client.responses.create(model="m", input="hi", stream=True):
        event.model_validate(event.model_dump(by_alias=True), strict=True)
    if name in BROKEN_OFF:  # the accumulator takes completed responses alone
        return
    with openai_client(text, EVENTS).responses.stream(model="m", input="hi") as stream:
        for _ in stream:
            pass
        check_response(name, stream.get_final_response())


@pytest.mark.parametrize(("name", "text"), by_name(answers(RESPONSES)))
def test_response_answers(name: str, text: str) -> None:
    answer = openai_client(text).responses.create(model="m", input="hi")
    answer.model_validate(answer.model_dump(by_alias=True), strict=True)
    check_response(name, answer)


def check_response(name: str, answer) -> None:
    calls = [item.arguments for item in answer.output if item.type == "function_call"]
    check_message(name, answer.output_text, calls)
    reasoning = [item.content[0].text for item in answer.output if item.type == "reasoning"]
    assert reasoning == ([REASONING[name]] if name in REASONING else [])


@pytest.mark.parametrize(("name", "text"), by_name(streams(MESSAGES)))
def test_message_streams(name: str, text: str) -> None:
    client = anthropic_client(text, EVENTS)
    with client.messages.stream(model="m", max_tokens=9, messages=USER) as stream:
        if name == "error":
            with pytest.raises(anthropic.APIStatusError, match="died"):
                list(stream)
            return
        for _ in stream:
            pass
        final = stream.get_final_message()
    assert final.usage.output_tokens == 5 and final.usage.input_tokens == 4
    check_anthropic(name, final)


@pytest.mark.parametrize(("name", "text"), by_name(answers(MESSAGES)))
def test_message_answers(name: str, text: str) -> None:
    answer = anthropic_client(text).messages.create(model="m", max_tokens=9, messages=USER)
    answer.model_validate(answer.model_dump(), strict=True)
    check_anthropic(name, answer)


def check_anthropic(name: str, answer) -> None:
    text = "".join(block.text for block in answer.content if block.type == "text")
    calls = [block.input for block in answer.content if block.type == "tool_use"]
    assert text == TEXTS.get(name, "")
    assert calls == [json.loads(call) for call in CALLS.get(name, [])]
    reasoning = [block.thinking for block in answer.content if block.type == "thinking"]
    assert reasoning == ([REASONING[name]] if name in REASONING else [])
    reasons = {
        "length": "max_tokens",
        "filtered": "refusal",
        "stop string": "stop_sequence",
        "two choices": "max_tokens",
    }
    assert answer.stop_reason == ("tool_use" if calls else reasons.get(name, "end_turn"))
