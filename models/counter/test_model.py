"""The stream is an async generator: its test collects what it yields."""

import asyncio

import pytest
from model import handle_request
from omni import Context, Request, errors


def count(body):
    async def collect():
        return [event async for event in handle_request(Request(json=body), Context.inactive())]

    return asyncio.run(collect())


def test_counts_from_one():
    assert count({"to": 3}) == [{"count": 1}, {"count": 2}, {"count": 3}]


def test_counts_to_ten_unless_told():
    assert len(count({})) == 10


def test_nothing_to_count():
    assert count({"to": 0}) == []


@pytest.mark.parametrize("bad", [{"to": -1}, {"to": "3"}, {"to": True}, {"to": 10**9}, {"ms": 0.5}, [1]])
def test_a_wrong_number_is_refused_before_the_first_event(bad):
    with pytest.raises(errors.BadRequest):
        count(bad)
