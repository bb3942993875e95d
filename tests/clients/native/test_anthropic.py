"""The official `anthropic` SDK, unmodified, against a model with real weights on the native engine.

Run by `tests/functional/native_clients.rs`, which starts the node with SmolLM2-135M-Instruct as `chat` and names its
address in OMNI_URL.
"""

import os

import anthropic
import pytest

URL = os.environ["OMNI_URL"]
GREEDY = {"extra_body": {"temperature": 0}}  # the client has no parameter for it
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
TOOL = {
    "name": "get_weather",
    "description": "Weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def client():
    with anthropic.Anthropic(api_key="token", base_url=URL, max_retries=0) as client:
        yield client


def test_a_message_whole_and_streamed(client):
    options = {"model": "chat", "max_tokens": 30, "messages": CAPITAL, **GREEDY}
    whole = client.messages.create(**options)
    assert (whole.content[0].text, whole.stop_reason) == ("The capital of France is Paris.", "end_turn")
    assert (whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0), whole.usage.output_tokens) == (16, 8)
    with client.messages.stream(**options) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", 8)


def test_limits_and_stop_sequences(client):
    options = {"model": "chat", "messages": CAPITAL, **GREEDY}
    cut = client.messages.create(max_tokens=3, **options)
    assert (cut.content[0].text, cut.stop_reason, cut.usage.output_tokens) == ("The capital of", "max_tokens", 3)
    stopped = client.messages.create(max_tokens=30, stop_sequences=[" France"], **options)
    assert (stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence) == (
        "The capital of",
        "stop_sequence",
        " France",
    )


def test_a_last_message_of_the_assistant_is_continued(client):
    messages = [*CAPITAL, {"role": "assistant", "content": "The capital of"}]
    answer = client.messages.create(model="chat", max_tokens=30, messages=messages, **GREEDY)
    assert answer.content[0].text == " France is Paris."


def test_a_demanded_tool_call_and_its_result(client):
    options = {"model": "chat", "max_tokens": 60, "tools": [TOOL], **GREEDY}
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = client.messages.create(messages=question, tool_choice={"type": "any"}, **options)
    call = answer.content[-1]
    assert (answer.stop_reason, call.type, call.name) == ("tool_use", "tool_use", "get_weather")
    assert call.input["city"] in ("Paris", "Rome")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "It is sunny."}
    history = [
        *question,
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [result]},
    ]
    answer = client.messages.create(messages=history, tool_choice={"type": "none"}, **{**options, "max_tokens": 20})
    assert answer.content[0].type == "text"


def test_tokens_are_counted_as_they_are_used(client):
    assert client.messages.count_tokens(model="chat", messages=CAPITAL).input_tokens == 16


def test_requests_that_are_wrong_are_refused(client):
    long = [{"role": "user", "content": "word " * 9000}]
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(model="chat", max_tokens=9, messages=long)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="absent", max_tokens=9, messages=CAPITAL)
