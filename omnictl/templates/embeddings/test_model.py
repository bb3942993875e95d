"""Tests of MODEL_NAME: python -m pytest. The client calls the model as a node does; no node is needed."""

from pathlib import Path

import pytest
from omni import errors
from omni.testing import TestClient


@pytest.fixture(scope="module")
def client():
    with TestClient(Path(__file__).parent) as client:
        yield client


def test_near_texts_have_near_vectors(client):
    cow, cows, moon = client.embed(["a brown cow", "brown cows", "moonlight"])
    assert dot(cow, cow) == pytest.approx(1)
    assert dot(cow, cows) > dot(cow, moon)


def test_an_empty_text_has_a_vector(client):
    assert len(client.embed([""])[0]) == 64


def test_what_the_model_has_not_is_refused(client):
    with pytest.raises(errors.BadRequest, match="token ids"):
        client.embed(tokens=[[1, 2]])
    with pytest.raises(errors.BadRequest, match="64 dimensions"):
        client.embed(["a"], dimensions=8)


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))
