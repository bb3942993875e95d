"""`litellm`, unmodified, against a model with real weights on the native engine: its three providers for a node.

Run by `tests/functional/native_clients.rs`, which starts the node with SmolLM2-135M-Instruct as `chat` and names its
address in OMNI_URL.
"""

import asyncio
import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # read on import; else it is fetched

import litellm
import pytest

URL = os.environ["OMNI_URL"]
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
PROVIDERS = {
    "openai": {"model": "openai/chat", "api_base": f"{URL}/v1", "api_key": "token"},
    "anthropic": {"model": "anthropic/chat", "api_base": URL, "api_key": "token"},
    "cloudflare": {"model": "cloudflare/chat", "api_base": f"{URL}/client/v4/accounts/x/ai/v1", "api_key": "token"},
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(params=PROVIDERS)
def ask(request):
    """Asks greedily through one of the providers."""

    def ask(messages, **more):
        options = {"temperature": 0, "max_tokens": 30, "max_retries": 0, **PROVIDERS[request.param], **more}
        return litellm.completion(messages=messages, **options)

    return ask


def test_an_answer_whole_and_streamed(ask):
    answer = ask(CAPITAL)
    assert answer.choices[0].message.content == "The capital of France is Paris."
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("stop", 8)
    whole = litellm.stream_chunk_builder(list(ask(CAPITAL, stream=True, stream_options={"include_usage": True})))
    assert whole.choices[0].message.content == answer.choices[0].message.content
    assert whole.usage.completion_tokens == 8


def test_limits_and_stop_strings(ask):
    cut = ask(CAPITAL, max_tokens=3).choices[0]
    assert (cut.message.content, cut.finish_reason) == ("The capital of", "length")
    assert ask(CAPITAL, stop=[" France"]).choices[0].message.content == "The capital of"


def test_a_demanded_tool_call(ask):
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = ask(question, tools=[TOOL], tool_choice="required", max_tokens=60)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather" and json.loads(call.function.arguments)["city"] in ("Paris", "Rome")


def test_structured_output(ask):
    schema = {
        "type": "object",
        "properties": {"size": {"enum": ["small", "large"]}},
        "required": ["size"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": True}}
    answer = ask([{"role": "user", "content": "How large is Paris?"}], response_format=form, max_tokens=60)
    assert json.loads(answer.choices[0].message.content)["size"] in ("small", "large")


def test_a_prompt_that_is_too_long(ask):
    with pytest.raises(litellm.BadRequestError):
        ask([{"role": "user", "content": "word " * 9000}])


def test_streams_beside_each_other():
    async def ask(provider):
        stream = await litellm.acompletion(
            messages=CAPITAL, temperature=0, max_tokens=30, stream=True, **PROVIDERS[provider]
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def every():
        return await asyncio.gather(*map(ask, PROVIDERS))

    assert asyncio.run(every()) == ["The capital of France is Paris."] * 3
