"""Tests of MODEL_NAME: python -m pytest. The client calls the model as a node does; no node is needed."""

import struct
from pathlib import Path

import pytest
from omni import errors
from omni.testing import TestClient


@pytest.fixture(scope="module")
def client():
    with TestClient(Path(__file__).parent) as client:
        yield client


def test_a_picture_has_the_size_asked_for(client):
    (picture,) = client.image("a cow", width=32, height=16)
    assert picture.startswith(b"\x89PNG") and struct.unpack(">II", picture[16:24]) == (32, 16)


def test_pictures_differ_by_prompt_and_seed(client):
    assert len({*client.image("a cow", n=2), *client.image("a dog")}) == 3
    assert client.image("a cow", seed=7) == client.image("a cow", seed=7)


def test_pictures_that_are_too_large_are_refused(client):
    with pytest.raises(errors.BadRequest, match="at most 1024"):
        client.image("a cow", width=4096)
