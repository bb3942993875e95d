"""The official `cloudflare` SDK, unmodified, against a node: plain, raw and streaming calls, exceptions, retries.

Run by `tests/functional/clients.rs`, which starts the node and its models and says where it listens in OMNI_URL.
"""

import os
import threading
import time

import cloudflare
import pytest

URL = os.environ["OMNI_URL"]


@pytest.fixture
def client():
    with cloudflare.Cloudflare(api_token="token", base_url=f"{URL}/client/v4", max_retries=0) as client:
        yield client


def test_plain_call_returns_the_result(client):
    assert client.ai.run("echo", account_id="x", prompt="hi") == {"prompt": "hi"}


def test_a_name_with_slashes_is_one_model(client):
    assert client.ai.run("@cf/meta/echo", account_id="x", prompt="hi") == {"prompt": "hi"}


def test_a_text_result_is_text(client):
    assert client.ai.run("hello", account_id="x", prompt="you") == "hello you"


def test_raw_call_brings_bytes_and_headers(client):
    answer = client.ai.with_raw_response.run("picture", account_id="x", prompt="")
    assert answer.headers["content-type"] == "image/png"
    assert answer.read() == b"\x89PNG\r\n\x1a\nnot really"
    assert len(answer.headers["x-request-id"]) == 36


def test_streaming_call_brings_events(client):
    with client.ai.with_streaming_response.run(
        "count", account_id="x", prompt="3", extra_body={"stream": True}
    ) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert lines == ['data: {"response":"0"}', 'data: {"response":"1"}', 'data: {"response":"2"}', "data: [DONE]"]


def test_no_such_model(client):
    with pytest.raises(cloudflare.NotFoundError) as raised:
        client.ai.run("nobody", account_id="x", prompt="hi")
    assert raised.value.errors[0].code == 5007


def test_a_handler_that_refuses(client):
    with pytest.raises(cloudflare.BadRequestError) as raised:
        client.ai.run("hello", account_id="x", text="hi")
    assert raised.value.errors[0].code == 5004
    assert "prompt is missing" in raised.value.errors[0].message


def test_bytes_that_are_not_json_are_a_bad_request(client):
    with pytest.raises(cloudflare.BadRequestError) as raised:
        client.post("/accounts/x/ai/run/@cf/meta/echo", body=b"\xff\xfe", cast_to=object)
    assert raised.value.errors[0].code == 5004


def test_a_body_over_the_limit_is_refused(client):
    """The answer comes while the client still writes."""
    with pytest.raises(cloudflare.APIStatusError) as raised:
        client.ai.run("echo", account_id="x", prompt="x" * (32 << 20))
    assert raised.value.status_code == 413
    assert raised.value.errors[0].code == 3006


def test_a_handler_that_raises_is_not_repeated():
    with cloudflare.Cloudflare(api_token="token", base_url=f"{URL}/client/v4", max_retries=2) as client:
        before = client.ai.run("raises", account_id="x", prompt="calls")
        with pytest.raises(cloudflare.InternalServerError) as raised:
            client.ai.run("raises", account_id="x", prompt="now")
        assert raised.value.errors[0].code == 3043
        assert client.ai.run("raises", account_id="x", prompt="calls") == before + 1


def test_a_full_queue_is_repeated_after_its_pause():
    """With one request running and no queue, the second gets 429 and its Retry-After, and succeeds when the SDK
    retries.
    """
    with cloudflare.Cloudflare(api_token="token", base_url=f"{URL}/client/v4", max_retries=0) as client:

        def occupy():
            while True:  # the requests that look whether it runs may be in its way
                try:
                    return client.ai.run("slow", account_id="x", prompt="1.5")
                except cloudflare.RateLimitError:
                    pass

        first = threading.Thread(target=occupy)
        first.start()
        deadline = time.monotonic() + 30
        while True:  # the first is running once a second one is refused
            try:
                client.ai.run("slow", account_id="x", prompt="0")
            except cloudflare.RateLimitError as error:
                assert error.errors[0].code == 3040
                assert 1 <= int(error.response.headers["retry-after"]) <= 60
                break
            assert time.monotonic() < deadline
        patient = client.with_options(max_retries=4)
        assert patient.ai.run("slow", account_id="x", prompt="0") == "slept"
        first.join()


def test_a_deadline_is_reported_once():
    with cloudflare.Cloudflare(api_token="token", base_url=f"{URL}/client/v4", max_retries=2) as client:
        began = time.monotonic()
        with pytest.raises(cloudflare.InternalServerError) as raised:
            client.ai.run("slow", account_id="x", prompt="30", extra_headers={"x-omni-timeout-ms": "300"})
        assert raised.value.status_code == 504
        assert raised.value.errors[0].code == 3007
        assert time.monotonic() - began < 20


def test_generated_text_in_the_native_form(client):
    answer = client.ai.run("chat", account_id="x", prompt="hello")
    assert answer["response"] == "You said: hello" and answer["usage"]["total_tokens"] > 0
    extra = {"messages": [{"role": "user", "content": "weather"}], "tools": [{"name": "get_weather", "parameters": {}}]}
    calls = client.ai.run("chat", account_id="x", prompt=None, extra_body=extra)["tool_calls"]
    assert [(call["name"], call["arguments"]) for call in calls] == [("get_weather", {"city": "Paris"})]


def test_embeddings_in_the_native_form(client):
    answer = client.ai.run("vectors", account_id="x", text=["hello", "you"])
    assert answer == {"shape": [2, 3], "data": [[5.0, 2.0, 104.0], [3.0, 2.0, 121.0]]}


def test_other_kinds_in_the_native_form(client):
    contexts = [{"text": "moo"}, {"text": "baa"}]
    ranked = client.ai.run("rank", account_id="x", extra_body={"query": "a", "contexts": contexts, "top_k": 1})
    assert ranked == {"response": [{"id": 1, "score": 2.0}]}
    heard = client.ai.run("hear", account_id="x", audio=list(b"RIFF"), source_lang="de")
    assert (heard["text"], heard["word_count"]) == ("4 bytes of b'RIFF' in de", 6)
    assert client.ai.run("say", account_id="x", prompt="moo")["audio"] == "bW9vIE5vbmUgTm9uZSBOb25l"
    drawn = client.ai.run("draw", account_id="x", prompt="a cow", width=64, height=32)
    assert drawn == {"image": "iVBORw0KGgo2NHgzMiBhIGNvdw=="}
    options = {"headers": {"Content-Type": "audio/wav"}}  # as the client spells it, else it sends two
    file = client.post("/accounts/x/ai/run/hear", content=b"RIFF", cast_to=object, options=options)
    assert file["result"]["text"] == "4 bytes of b'RIFF' in None"
