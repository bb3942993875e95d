"""The official `anthropic` SDK, unmodified, against a node: messages, streams, tools, errors.

Run by `tests/functional/clients.rs`, which starts the node and its models and says where it listens in OMNI_URL.
"""

import os

import anthropic
import pytest

URL = os.environ["OMNI_URL"]
TOOL = {
    "name": "get_weather",
    "description": "The weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture
def client():
    with anthropic.Anthropic(api_key="token", base_url=URL, max_retries=0) as client:
        yield client


def user(text):
    return [{"role": "user", "content": text}]


def test_a_message(client):
    answer = client.messages.create(model="chat", max_tokens=100, messages=user("hello"))
    assert (answer.content[0].text, answer.stop_reason) == ("You said: hello", "end_turn")
    assert answer.usage.input_tokens > 0 and answer.usage.output_tokens > 0
    assert answer._request_id


def test_a_streamed_message(client):
    with client.messages.stream(model="chat", max_tokens=100, messages=user("count 5")) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == "1 2 3 4 5"
    assert final.stop_reason == "end_turn" and final.usage.output_tokens == 5


def test_a_tool_call_and_its_result(client):
    answer = client.messages.create(model="chat", max_tokens=100, messages=user("weather"), tools=[TOOL])
    call = answer.content[-1]
    assert answer.stop_reason == "tool_use" and (call.name, call.input) == ("get_weather", {"city": "Paris"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sun"}
    history = [
        *user("weather"),
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [result]},
    ]
    answer = client.messages.create(model="chat", max_tokens=100, messages=history, tools=[TOOL])
    assert answer.content[0].text == "The result is known."


def test_a_streamed_tool_call(client):
    with client.messages.stream(model="chat", max_tokens=100, messages=user("weather"), tools=[TOOL]) as stream:
        for _ in stream:
            pass
        final = stream.get_final_message()
    assert final.content[-1].input == {"city": "Paris"} and final.stop_reason == "tool_use"


def test_tokens_are_counted_by_the_model(client):
    count = client.messages.count_tokens(model="chat", messages=user("hello")).input_tokens
    answer = client.messages.create(model="chat", max_tokens=100, messages=user("hello"))
    assert count == answer.usage.input_tokens


def test_limits(client):
    cut = client.messages.create(model="chat", max_tokens=2, messages=user("count 9"))
    assert (cut.content[0].text, cut.stop_reason) == ("1 2", "max_tokens")
    stopped = client.messages.create(model="chat", max_tokens=99, messages=user("count 9"), stop_sequences=[" 4"])
    assert (stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence) == ("1 2 3", "stop_sequence", " 4")


def test_errors_have_the_form_of_the_api(client):
    with pytest.raises(anthropic.NotFoundError) as absent:
        client.messages.create(model="absent", max_tokens=9, messages=user("hello"))
    assert absent.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(model="chat", max_tokens=9, messages=user("hello"), extra_body={"top_k": 3})
    with pytest.raises(anthropic.InternalServerError):
        client.messages.create(model="chat", max_tokens=9, messages=user("raise"))
