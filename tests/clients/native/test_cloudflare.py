"""The official `cloudflare` SDK, unmodified, against a model with real weights on the native engine.

Run by `tests/functional/native_clients.rs`, which starts the node with SmolLM2-135M-Instruct as `chat` and names its
address in OMNI_URL.
"""

import json
import os

import cloudflare
import pytest

URL = os.environ["OMNI_URL"]
CAPITAL = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
ANSWER = "The capital of France is Paris."


@pytest.fixture(scope="module")
def run():
    with cloudflare.Cloudflare(api_token="token", base_url=f"{URL}/client/v4", max_retries=0) as client:

        def run(streamed=False, **body):
            options = {"account_id": "x", "prompt": None, "extra_body": body}
            if not streamed:
                return client.ai.run("chat", **options)
            body["stream"] = True
            with client.ai.with_streaming_response.run("chat", **options) as answer:
                return [line[6:] for line in answer.iter_lines() if line]

        yield run


def test_an_answer_whole_and_streamed(run):
    whole = run(**CAPITAL)
    assert (whole["response"], whole["usage"]["completion_tokens"]) == (ANSWER, 8)
    *events, end = run(streamed=True, **CAPITAL)
    assert end == "[DONE]"
    assert "".join(json.loads(event).get("response") or "" for event in events) == ANSWER


def test_limits_seeds_and_forms(run):
    assert run(**CAPITAL, max_tokens=3)["response"] == "The capital of"
    drawn = {**CAPITAL, "temperature": 2, "max_tokens": 8, "seed": 5, "top_k": 40}
    assert run(**drawn)["response"] == run(**drawn)["response"]
    schema = {
        "type": "object",
        "properties": {"size": {"enum": ["small", "large"]}},
        "required": ["size"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": schema}
    assert run(**CAPITAL, response_format=form)["response"]["size"] in ("small", "large")


def test_a_prompt_that_is_too_long(run):
    with pytest.raises(cloudflare.BadRequestError) as raised:
        run(messages=[{"role": "user", "content": "word " * 9000}])
    assert "9" in raised.value.errors[0].message
