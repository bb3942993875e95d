"""Tests of MODEL_NAME: python -m pytest. The client calls the model as a node does; no node is needed."""

from pathlib import Path

import pytest
from omni.testing import TestClient


@pytest.fixture(scope="module")
def client():
    with TestClient(Path(__file__).parent) as client:
        yield client


def test_a_document_with_the_words_is_relevant(client):
    assert client.rerank("brown cow", ["A cow, brown.", "The brown dog", "Rain"]) == [1.0, 0.5, 0.0]


def test_a_query_without_words_fits_nothing(client):
    assert client.rerank("", ["A cow"]) == [0.0]
