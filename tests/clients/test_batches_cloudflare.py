"""The official `cloudflare` SDK, unmodified, against a node: queued requests.

Run by `tests/functional/jobs.rs`, which starts the node and its models and says where it listens in OMNI_URL.
"""

import os
import time

import cloudflare
import pytest

URL = os.environ["OMNI_URL"]
QUEUE = {"queueRequest": "true"}


@pytest.fixture
def client():
    with cloudflare.Cloudflare(api_token="token", base_url=f"{URL}/client/v4", max_retries=0) as client:
        yield client


def run(client, model, body, query):
    # The method has no parameter of its own for queued requests: their documentation sends what it does not know.
    return client.ai.run(model, account_id="x", extra_body=body, extra_query=query)


@pytest.mark.parametrize("poll", [QUEUE, {}], ids=["polled by the REST page", "polled by the binding"])
def test_queued_requests_have_their_answers(client, poll):
    inputs = [{"prompt": "say one", "external_reference": "r1"}, {"messages": [{"role": "user", "content": "say two"}]}]
    queued = run(client, "chat", {"requests": inputs}, QUEUE)
    assert (queued["status"], queued["model"]) == ("queued", "chat")
    deadline = time.monotonic() + 60
    while "responses" not in (answer := run(client, "chat", {"request_id": queued["request_id"]}, poll)):
        assert answer["status"] in ("queued", "running")
        assert time.monotonic() < deadline
        time.sleep(0.05)
    first, second = answer["responses"]
    assert (first["id"], first["success"], first["external_reference"]) == (0, True, "r1")
    assert (first["result"]["response"], second["result"]["response"]) == ("say one", "say two")
    assert answer["usage"]["total_tokens"] == 12


def test_unknown_requests_are_not_found(client):
    with pytest.raises(cloudflare.NotFoundError):
        run(client, "chat", {"request_id": "01890000-0000-7000-8000-000000000000"}, QUEUE)
