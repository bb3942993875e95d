"""Tests of MODEL_NAME: python -m pytest. The client calls the model as a node does; no node is needed."""

from pathlib import Path

import pytest
from omni import Usage, errors
from omni.testing import TestClient


@pytest.fixture(scope="module")
def client():
    with TestClient(Path(__file__).parent) as client:
        yield client


def test_answers_with_its_usage(client):
    answer = client.chat(prompt="one two three")
    assert answer.text == "The prompt has 3 words."
    assert (answer.finish.reason, answer.finish.usage) == ("stop", Usage(3, 3))


def test_streams_in_pieces(client):
    assert list(client.chat_stream(prompt=""))[:2] == ["The prompt", " has 0"]


def test_counts_tokens(client):
    assert client.count_tokens("one two three") == 3


def test_token_ids_are_refused(client):
    with pytest.raises(errors.BadRequest, match="token ids"):
        client.chat(prompt_tokens=[1, 2])
