"""`langchain-openai`, unmodified, against a model with real weights on the native engine.

The suite `langchain-tests` asks for what a small model cannot do by itself; what the engine makes it do is tested here.

Run by `tests/functional/native_clients.rs`, which starts the node with SmolLM2-135M-Instruct as `chat` and names its
address in OMNI_URL.
"""

import asyncio
import os
from typing import Literal

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

URL = os.environ["OMNI_URL"]
CAPITAL = "What is the capital of France?"
ANSWER = "The capital of France is Paris."


class City(BaseModel):
    """A city."""

    capital: bool
    size: Literal["small", "large"]


@tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """Weather of a city"""
    return f"It is sunny in {city}."


@pytest.fixture(scope="module")
def model():
    return ChatOpenAI(
        model="chat",
        base_url=f"{URL}/v1",
        api_key="token",
        max_retries=0,
        temperature=0,
        max_tokens=80,
        stream_usage=True,
    )


def test_answers_whole_streamed_and_in_batches(model):
    answer = model.invoke(CAPITAL)
    assert answer.content == ANSWER and answer.usage_metadata["output_tokens"] == 8
    chunks = list(model.stream(CAPITAL))
    assert "".join(chunk.content for chunk in chunks) == ANSWER
    assert sum((chunk.usage_metadata or {}).get("output_tokens", 0) for chunk in chunks) == 8
    assert [answer.content for answer in model.batch([CAPITAL] * 3)] == [ANSWER] * 3
    assert asyncio.run(model.ainvoke(CAPITAL)).content == ANSWER


def test_options_of_a_call(model):
    assert model.invoke(CAPITAL, stop=[" France"]).content == "The capital of"
    scored = model.bind(logprobs=True, top_logprobs=2).invoke(CAPITAL).response_metadata["logprobs"]["content"]
    assert scored[0]["token"] == "The" and len(scored[0]["top_logprobs"]) == 2


# A schema that is not strict allows further properties, and a small model writes them until it has no tokens left.
def test_structured_output(model):
    for method in ("json_schema", "function_calling"):
        answer = model.with_structured_output(City, method=method, strict=True).invoke("Describe Paris.")
        assert isinstance(answer, City)


def test_a_demanded_tool_call_and_its_result(model):
    bound = model.bind_tools([get_weather], tool_choice="any", strict=True)
    question = HumanMessage("What is the weather in Paris?")
    asked = bound.invoke([question])
    (call,) = asked.tool_calls
    assert call["name"] == "get_weather"
    result = get_weather.invoke(call)
    assert isinstance(asked, AIMessage) and isinstance(result, ToolMessage)
    assert model.bind(max_tokens=20).invoke([question, asked, result]).content
    (streamed,) = [call for chunk in bound.stream([question]) for call in chunk.tool_calls if call["name"]]
    assert streamed["name"] == "get_weather"
