"""Batches that are isolated: divided after an exception, until the request at fault is alone."""

from __future__ import annotations

from peer import CANCELLED, CHUNK, END, ERROR, RAISED, RESPONSE, STREAM, UNSERIALISABLE
from test_batches import kinds

CALLS = """
CALLS = []
"""
POISON = """
CALLS.append([request.body.json for request in requests])
if "poison" in CALLS[-1]:
    raise ValueError("moo")
if CALLS[-1] == ["calls"]:
    return [CALLS[:-1]]
return [body for body in CALLS[-1]]
"""


def test_a_batch_that_is_isolated_is_divided_until_the_one_at_fault_is_alone(model):
    engine, link = model(POISON, before=CALLS)
    bodies = {1: "a", 2: "b", 3: "poison", 4: "c", 5: "d"}
    link.batch(10, bodies, isolates=True)
    found = link.gather(*bodies)
    for number, body in bodies.items():
        got = found[number][0]
        if body == "poison":
            assert (got.kind, got.flags, got.json) == (ERROR, RAISED, {"message": "ValueError: moo"})
        else:
            assert (got.kind, got.json) == (RESPONSE, body)
    link.ask(6, "calls")
    whole = list(bodies.values())
    assert link.read().json == [whole, whole[:3], whole[:2], whole[2:3], whole[3:]]
    assert engine.log().count("the handler of batches raised ValueError: 5 requests are divided") == 1
    assert engine.log().count("ValueError: moo") == 1, "the traceback of the one at fault"


def test_a_batch_that_is_isolated_is_not_divided_for_what_it_returns(model):
    engine, link = model("return []")
    link.batch(10, {1: 0, 2: 0}, isolates=True)
    assert [got[0].flags for got in link.gather(1, 2).values()] == [UNSERIALISABLE] * 2
    assert "divided" not in engine.log()


def test_a_stream_that_has_begun_is_not_begun_again(model):
    _, link = model("yield [1, None]\nraise ValueError('moo')")
    link.batch(10, {1: 0, 2: 0}, isolates=True)
    assert [kinds(got) for got in link.gather(1, 2).values()] == [[STREAM, CHUNK, ERROR], [ERROR]]
    _, link = model("if len(requests) > 1: raise ValueError('moo')\nyield [1]")
    link.batch(10, {1: 0, 2: 0}, isolates=True)
    assert [kinds(got) for got in link.gather(1, 2).values()] == [[STREAM, CHUNK, END]] * 2


def test_a_cancelled_member_is_not_handled_again(model):
    body = """
CALLS.append([request.body.json for request in requests])
if CALLS[-1] == ["calls"]:
    return [CALLS[:-1]]
if len(requests) == 4:
    print("begun", flush=True)
    while sum(request.cancelled for request in requests) < 2:
        SLEEP(0.001)
    raise ValueError("moo")
return CALLS[-1]
"""
    engine, link = model(body, before=CALLS)
    link.batch(10, {1: "a", 2: "b", 3: "c", 4: "d"}, isolates=True)
    engine.await_true(lambda: "begun" in engine.printed(), "call")
    link.cancel(1)
    link.cancel(4)
    found = link.gather(1, 2, 3, 4)
    assert [found[number][0].flags for number in (1, 4)] == [CANCELLED] * 2
    assert [found[number][0].json for number in (2, 3)] == ["b", "c"]
    link.ask(5, "calls")
    assert link.read().json == [["a", "b", "c", "d"], ["b"], ["c"]]
