"""`litellm`, unmodified, against a node: its providers `openai/`, `anthropic/` and `cloudflare/`, and its bridges.

Run by `tests/functional/clients.rs`, which starts the node and its models and names its address in OMNI_URL.
"""

import asyncio
import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # read on import; else it is fetched

import litellm
import pytest
from pydantic import BaseModel

URL = os.environ["OMNI_URL"]
ACCOUNT = f"{URL}/client/v4/accounts/x/ai"
PROVIDERS = {
    "openai": {"model": "openai/chat", "api_base": f"{URL}/v1", "api_key": "token"},
    "anthropic": {"model": "anthropic/chat", "api_base": URL, "api_key": "token"},
    "cloudflare": {"model": "cloudflare/@cf/meta/chat", "api_base": f"{ACCOUNT}/v1", "api_key": "token"},
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    },
    {
        "type": "function",
        "function": {"name": "get_time", "description": "The time", "parameters": {"type": "object", "properties": {}}},
    },
]


class Person(BaseModel):
    name: str
    age: int


def user(text):
    return [{"role": "user", "content": text}]


@pytest.fixture(params=PROVIDERS)
def ask(request):
    """Asks through one of the providers."""

    def ask(messages, **more):
        messages = user(messages) if isinstance(messages, str) else messages
        return litellm.completion(messages=messages, max_retries=0, **PROVIDERS[request.param], **more)

    ask.provider = request.param
    return ask


def calls(message):
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]


def test_a_completion(ask):
    answer = ask("hello", max_tokens=50, temperature=0.5, top_p=0.9)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("You said: hello", "stop")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0


def test_a_stream_with_usage(ask):
    chunks = list(ask("count 5", stream=True, stream_options={"include_usage": True}))
    whole = litellm.stream_chunk_builder(chunks)
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("1 2 3 4 5", "stop")
    assert whole.usage.completion_tokens == 5


def test_limits(ask):
    cut = ask("count 9", max_tokens=2).choices[0]
    assert (cut.message.content, cut.finish_reason) == ("1 2", "length")
    stopped = ask("count 9", stop=[" 4"]).choices[0]
    assert (stopped.message.content, stopped.finish_reason) == ("1 2 3", "stop")


def test_a_tool_call_and_its_result(ask):
    answer = ask("weather", tools=TOOLS)
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    assert calls(message) == [("get_weather", {"city": "Paris"})]
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sun"}
    answer = ask([*user("weather"), message, result], tools=TOOLS)
    assert answer.choices[0].message.content == "The result is known."


def test_several_tool_calls_whole_and_streamed(ask):
    expected = [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"})]
    assert calls(ask("two calls", tools=TOOLS).choices[0].message) == expected
    whole = litellm.stream_chunk_builder(list(ask("two calls", tools=TOOLS, stream=True)))
    assert calls(whole.choices[0].message) == expected
    assert whole.choices[0].finish_reason == "tool_calls"


def test_a_tool_without_arguments(ask):
    assert calls(ask("get_time", tools=TOOLS).choices[0].message) == [("get_time", {})]
    whole = litellm.stream_chunk_builder(list(ask("get_time", tools=TOOLS, stream=True)))
    assert calls(whole.choices[0].message) == [("get_time", {})]


def test_choices_of_tools(ask):
    named = {"type": "function", "function": {"name": "get_time"}}
    assert calls(ask("hello", tools=TOOLS, tool_choice=named).choices[0].message) == [("get_time", {})]
    (call,) = calls(ask("hello", tools=TOOLS, tool_choice="required", parallel_tool_calls=False).choices[0].message)
    assert call[0] == "get_weather"
    assert ask("hello", tools=TOOLS, tool_choice="none").choices[0].message.content == "You said: hello"


def test_structured_output(ask):
    answer = ask("person", response_format=Person)
    assert Person.model_validate_json(answer.choices[0].message.content) == Person(name="Ada", age=36)


def test_reasoning_is_apart(ask):
    message = ask("think").choices[0].message
    assert (message.reasoning_content.strip(), message.content.strip()) == ("Let me see.", "Answer")
    whole = litellm.stream_chunk_builder(list(ask("think", stream=True))).choices[0].message
    assert (whole.reasoning_content.strip(), whole.content.strip()) == ("Let me see.", "Answer")
    again = [*user("think"), message, *user("hello")]
    assert ask(again).choices[0].message.content == "You said: hello"


def test_an_image_is_refused_by_a_model_without_images(ask):
    pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{pixel}"}}
    with pytest.raises(litellm.BadRequestError, match="image"):
        ask([{"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]}])


def test_an_unknown_field_is_passed_on_and_named_in_the_refusal(ask):
    with pytest.raises(litellm.BadRequestError, match="foo"):
        ask("hello", foo=1)


def test_errors_keep_their_class(ask):
    with pytest.raises(litellm.NotFoundError, match="no such model"):
        litellm.completion(messages=user("hello"), **{**PROVIDERS[ask.provider], "model": f"{ask.provider}/absent"})
    with pytest.raises(litellm.InternalServerError):
        ask("raise")
    with pytest.raises(litellm.exceptions.MidStreamFallbackError):
        list(ask("raise late", stream=True))


def test_the_asynchronous_client():
    async def ask(provider):
        answer = await litellm.acompletion(messages=user("count 4"), stream=True, **PROVIDERS[provider])
        return "".join([chunk.choices[0].delta.content or "" async for chunk in answer])

    async def every():
        return await asyncio.gather(*map(ask, PROVIDERS))

    assert asyncio.run(every()) == ["1 2 3 4"] * 3


def test_a_completion_of_text():
    openai = {**PROVIDERS["openai"], "model": "text-completion-openai/chat"}
    assert litellm.text_completion(prompt="one", **openai).choices[0].text == "You said: one"


def test_embeddings():
    openai = {**PROVIDERS["openai"], "model": "openai/vectors"}
    answer = litellm.embedding(input=["hello", "you"], **openai)
    assert [entry["embedding"] for entry in answer.data] == [[5.0, 2.0, 104.0], [3.0, 2.0, 121.0]]


def test_documents_recordings_speech_and_images():
    ranked = litellm.rerank(
        model="hosted_vllm/rank", query="a", documents=["moo", "baa"], top_n=1, api_base=f"{URL}/v1"
    )
    assert [(result["index"], result["relevance_score"]) for result in ranked.results] == [(1, 2.0)]
    node = {"api_base": f"{URL}/v1", "api_key": "token"}
    heard = litellm.transcription(model="openai/hear", file=("a.wav", b"RIFF"), language="en", **node)
    assert heard.text == "4 bytes of b'RIFF' in en"
    said = litellm.speech(model="openai/say", input="moo", voice="ann", **node)
    assert said.content == b"moo ann mp3 1.0"
    drawn = litellm.image_generation(model="openai/draw", prompt="a cow", n=2, size="512x512", **node)
    assert [image.b64_json for image in drawn.data] == ["iVBORw0KGgo1MTJ4NTEyIGEgY293"] * 2


def test_responses():
    answer = litellm.responses(input="hello", **PROVIDERS["openai"])
    assert answer.output[-1].content[0].text == "You said: hello"
    kinds = [event.type for event in litellm.responses(input="count 4", stream=True, **PROVIDERS["openai"])]
    assert kinds[-1] == "response.completed"


@pytest.mark.parametrize("provider", PROVIDERS)
def test_messages_of_anthropic_by_each_provider(provider):
    """For `openai/` the bridge calls `/v1/responses`, for `cloudflare/` chat completions."""
    tool = {"name": "get_weather", "input_schema": TOOLS[0]["function"]["parameters"]}
    settings = {"max_tokens": 100, "tools": [tool], **PROVIDERS[provider]}

    async def talk():
        plain = await litellm.anthropic.messages.acreate(messages=user("hello"), **settings)
        first = await litellm.anthropic.messages.acreate(messages=user("weather"), **settings)
        call = next(block for block in first["content"] if block["type"] == "tool_use")
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "sun"}
        history = [
            *user("weather"),
            {"role": "assistant", "content": first["content"]},
            {"role": "user", "content": [result]},
        ]
        second = await litellm.anthropic.messages.acreate(messages=history, **settings)
        return plain, first["stop_reason"], call["input"], second

    plain, stop, arguments, second = asyncio.run(talk())
    assert plain["content"][0]["text"] == "You said: hello"
    assert (stop, arguments) == ("tool_use", {"city": "Paris"})
    assert second["content"][0]["text"] == "The result is known."


def test_a_stream_of_messages_of_anthropic():
    """By the only provider for which the client needs no package of its proxy."""

    async def ask():
        settings = {"max_tokens": 100, "stream": True, **PROVIDERS["cloudflare"]}
        stream = await litellm.anthropic.messages.acreate(messages=user("count 3"), **settings)
        return b"".join([part async for part in stream])

    events = [json.loads(line[6:]) for line in asyncio.run(ask()).decode().splitlines() if line.startswith("data: ")]
    deltas = [event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta"]
    assert ("".join(deltas), events[-1]["type"]) == ("1 2 3", "message_stop")
