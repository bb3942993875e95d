"""Tests of MODEL_NAME: python -m pytest. They call the handler directly; no node is needed."""

from omni import Context, Request

from model import handle_request


def test_greets_by_name():
    answer = handle_request(Request(json={"name": "Ada"}), Context.inactive())
    assert answer == {"greeting": "Hello, Ada!"}


def test_a_missing_name_is_the_callers_mistake():
    answer = handle_request(Request(json={}), Context.inactive())
    assert answer.status == 400
