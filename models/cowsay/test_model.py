"""A model is a function: it is tested by calling it."""

import pytest
from model import handle_request
from omni import Context, Request

COW = r"""
  __
| hi |
  ==
  \
   \
     ^__^
     (oo)\_______
     (__)\       )\/\
         ||----w |
         ||     ||
"""


def lines(text):
    """The drawing without the spaces at the ends of lines, which nobody sees."""
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def test_basic():
    out = handle_request(Request(json={"text": "hi"}), Context.inactive())
    assert "hi" in out


def test_the_exact_cow():
    out = handle_request(Request(json={"text": "hi"}), Context.inactive())
    assert lines(out) == lines(COW)


@pytest.mark.parametrize("bad", [Request(json={}), Request(json=["text"]), Request(body=b"not JSON")])
def test_a_body_without_text_is_the_callers_mistake(bad):
    answer = handle_request(bad, Context.inactive())
    assert answer.status == 400
