"""Tests of MODEL_NAME: python -m pytest. The client calls the model as a node does; no node is needed."""

from pathlib import Path

import pytest
from omni.testing import TestClient


@pytest.fixture(scope="module")
def client():
    with TestClient(Path(__file__).parent) as client:
        yield client


def test_greets_by_name(client):
    assert client.run(json={"name": "Ada"}).json == {"greeting": "Hello, Ada!"}


def test_a_missing_name_is_the_callers_mistake(client):
    assert client.run(json={}).status == 400
