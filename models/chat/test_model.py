"""Real weights: texts, tokens, ends and calls are the model's own. Greedy answers are short, to be quick."""

import pytest
from omni import ResponseFormat, Usage, errors
from omni.testing import TestClient

CAPITAL = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
PARIS = 7042
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
CLOCK = {"type": "function", "function": {"name": "get_time", "parameters": PARAMETERS}}


@pytest.fixture(scope="module")
def chat():
    with TestClient(".") as client:
        yield client.chat


def test_an_answer_with_its_end_and_usage(chat):
    answer = chat(prompt=CAPITAL, temperature=0)
    assert answer.text == "The capital of France is Paris."
    assert answer.finish.reason == "stop"
    assert (answer.finish.usage.prompt_tokens, answer.finish.usage.completion_tokens) == (16, 8)


def test_the_limit_of_tokens_and_stop_strings(chat):
    cut = chat(prompt=CAPITAL, temperature=0, max_tokens=3)
    assert (cut.text, cut.finish.reason) == ("The capital of", "length")
    assert chat(prompt=CAPITAL, temperature=0, stop=[" of"]).text == "The capital"


def test_tokens_with_their_log_probabilities(chat):
    tokens = chat(prompt=CAPITAL, temperature=0, max_tokens=2, logprobs=2).tokens
    assert [token.text for token in tokens] == [b"The", b" capital"]
    assert tokens[0].top[0] == ("The", tokens[0].logprob) and len(tokens[0].top) == 2


def test_sampling_is_by_seed(chat):
    options = {"prompt": CAPITAL, "temperature": 2.0, "top_p": 1.0, "max_tokens": 8}
    assert chat(**options, seed=7).text == chat(**options, seed=7).text
    assert len({chat(**options, seed=seed).text for seed in range(4)}) > 1


def test_a_forbidden_token_does_not_come(chat):
    assert "Paris" not in chat(prompt=CAPITAL, temperature=0, logit_bias={PARIS: -100}, max_tokens=8).text


def test_a_call_that_the_client_demands_is_one(chat):
    calls = chat(prompt=CAPITAL, temperature=0, tools=[WEATHER, CLOCK], tool_choice="required").text
    assert calls.startswith("<tool_call>\n{") and calls.endswith("}\n</tool_call>") and '"city"' in calls
    named = {"type": "function", "function": {"name": "get_time"}}
    assert "get_time" in chat(prompt=CAPITAL, temperature=0, tools=[WEATHER, CLOCK], tool_choice=named).text


def test_an_answer_keeps_to_a_schema(chat):
    schema = {"type": "object", "properties": {"n": {"enum": [7]}}, "required": ["n"], "additionalProperties": False}
    answer = chat(prompt=CAPITAL, temperature=0, response_format=ResponseFormat("json_schema", schema))
    assert answer.text.replace(" ", "").replace("\n", "") == '{"n":7}'


def test_token_ids_are_a_prompt(chat):
    answer = chat(prompt_tokens=[504, 3575, 282, 4649, 314], temperature=0, max_tokens=1)
    assert answer.finish.usage == Usage(5, 1)


def test_a_conversation_that_is_too_long_is_refused(chat):
    with pytest.raises(errors.ContextLengthExceeded, match="context size"):
        chat(prompt="word " * 3000)
