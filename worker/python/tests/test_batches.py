"""Batches: one call for several requests, and an answer of its own for each."""

from __future__ import annotations

import os
import random
import socket
import struct

import pytest
from conftest import WAYS
from peer import (
    BATCH,
    CANCELLED,
    CHUNK,
    DEADLINE,
    END,
    ERROR,
    EVENT,
    EVENTS,
    HANDLER,
    JSON,
    RAISED,
    RESPONSE,
    STREAM,
    TEXT,
    UNSERIALISABLE,
    USAGE,
    frame,
    request,
)

COW = """
from pydantic import BaseModel
class Cow(BaseModel):
    query: str
"""


def kinds(frames):
    return [got.kind for got in frames]


def test_each_member_has_its_answer(model):
    _, link = model("return [request.body.json + 1 for request in requests]")
    link.batch(10, {1: 1, 2: 20, 3: 300})
    found = link.gather(1, 2, 3)
    assert [found[number][0].json for number in (1, 2, 3)] == [2, 21, 301]
    assert all((got[0].kind, got[0].flags, got[0].code) == (RESPONSE, JSON, 200) for got in found.values())


def test_batches_follow_one_another(model):
    _, link = model("return [len(requests)] * len(requests)")
    for round in range(20):
        base = round * 10
        link.batch(base, {base + 1: 0, base + 2: 0})
        link.ask(base + 3, 0)
        found = link.gather(base + 1, base + 2, base + 3)
        assert [found[base + at][0].json for at in (1, 2, 3)] == [2, 2, 1]


@pytest.mark.parametrize("size", [1, 2000])
def test_a_large_batch(model, size):
    _, link = model(f"return [request.body.json * {size} for request in requests]")
    members = {number: str(number) for number in range(1, 1025)}
    link.batch(5000, members)
    found = link.gather(*members)
    assert all(found[number][0].json == str(number) * size for number in members)


def test_items_are_what_a_handler_may_return(model):
    body = """
return [
    {"a": 1}, None, b"moo", Response("x", status=201), Response.error(422, "no cow"),
    errors.HTTPError(404, "no such cow"), float("nan"), iter([1]), b"x" * 300_000,
]
"""
    engine, link = model(body)
    link.batch(100, dict.fromkeys(range(9), 0))
    found = link.gather(*range(9))
    assert [found[at][0].kind for at in range(9)] == [RESPONSE] * 4 + [ERROR] * 4 + [STREAM]
    assert (found[0][0].json, found[1][0].json, found[2][0].payload) == ({"a": 1}, None, b"moo")
    assert (found[3][0].code, found[3][0].json) == (201, "x")
    assert [(found[at][0].flags, found[at][0].code) for at in (4, 5)] == [(HANDLER, 422), (HANDLER, 404)]
    assert [found[at][0].flags for at in (6, 7)] == [UNSERIALISABLE] * 2
    assert "yield lists" in found[7][0].json["message"]
    engine.await_log("ERROR [r6] the result cannot be sent: the result cannot be written as JSON")
    assert b"".join(got.payload for got in found[8] if got.kind == CHUNK) == b"x" * 300_000


@pytest.mark.parametrize("result", ["[1]", "[1, 2, 3]", "[]"])
def test_a_list_of_the_wrong_length_fails_all(model, result):
    engine, link = model(f"return {result} if requests[0].body.json else [7, 7]")
    link.batch(10, {1: 1, 2: 1})
    found = link.gather(1, 2)
    for number in (1, 2):
        got = found[number][0]
        assert (got.kind, got.flags, got.code) == (ERROR, UNSERIALISABLE, 500)
        assert "items for 2 requests" in got.json["message"]
    engine.await_log("items for 2 requests: one for each is needed")
    link.batch(20, {3: 0, 4: 0})
    assert link.gather(3, 4)[4][0].json == 7, "and on it goes"


def test_a_result_that_is_no_list_fails_all(model):
    _, link = model("return {'a': 1}")
    link.batch(10, {1: 0, 2: 0})
    assert "returned dict: a list with an item for each of the 2 requests" in link.gather(1, 2)[1][0].json["message"]


def test_what_is_raised_fails_all(model):
    engine, link = model("raise ValueError('moo') if requests[0].body.json else errors.HTTPError(418, 'tea')")
    link.batch(10, {1: 1, 2: 1})
    found = link.gather(1, 2)
    for number in (1, 2):
        got = found[number][0]
        assert (got.flags, got.code, got.json) == (RAISED, 500, {"message": "ValueError: moo"})
    assert engine.log().count("ValueError: moo") == 1
    link.batch(20, {3: 0, 4: 0})
    found = link.gather(3, 4)
    assert all((got[0].flags, got[0].code, got[0].json) == (HANDLER, 418, {"message": "tea"}) for got in found.values())


def test_what_is_raised_for_one_is_no_failure_of_a_batch(model):
    _, link = model("raise ValueError('moo')")
    link.ask(1, 0)
    assert link.read().json == {"message": "ValueError: moo"}


def test_a_malformed_member_fails_alone(model):
    _, link = model("return [request.query for request in requests]", annotation=": list[Rerank]")
    link.batch(10, {1: {"query": "a", "documents": []}, 2: {"documents": []}, 3: {"query": "c", "documents": []}})
    found = link.gather(1, 2, 3)
    assert (found[2][0].code, found[2][0].json["parameter"]) == (400, "query")
    assert all(found[number][0].kind == ERROR and found[number][0].flags == UNSERIALISABLE for number in (1, 3))
    link.batch(20, {4: {}, 5: 1})
    assert [got[0].code for got in link.gather(4, 5).values()] == [400, 400], "without a call of the handler"


def test_members_may_be_typed(model):
    _, link = model("return [[[len(t)] for t in one.texts] for one in requests]", annotation=": 'list[Embeddings]'")
    link.batch(10, {1: {"texts": ["a", "bc"]}, 2: {"texts": ["abc"]}}, kind="embeddings")
    found = link.gather(1, 2)
    assert [struct.unpack("<2f", found[1][0].payload[-8:]), struct.unpack("<f", found[2][0].payload[-4:])] == [
        (1.0, 2.0),
        (3.0,),
    ]


STREAMED = """
for at in range(1, max(one.body.json for one in requests) + 1):
    yield [f"{at}" if at <= one.body.json else None for one in requests]
"""


def test_values_that_raise_anything_fail_alone(model):
    before = """
class Exits:
    dtype = ""
    def tolist(self):
        raise SystemExit(3)
"""
    _, link = model("return [1, Exits(), 3]", before=before)
    link.batch(10, {1: 0, 2: 0, 3: 0})
    found = link.gather(1, 2, 3)
    assert (found[1][0].json, found[2][0].kind, found[3][0].json) == (1, ERROR, 3)


def test_lists_of_pieces_are_streams(model):
    _, link = model(STREAMED)
    link.batch(10, {1: 3, 2: 1, 3: 0})
    found = link.gather(1, 2, 3)
    assert kinds(found[1]) == [STREAM, CHUNK, CHUNK, CHUNK, END]
    assert [got.payload for got in found[1][1:-1]] == [b"1", b"2", b"3"]
    assert [got.payload for got in found[2][1:-1]] == [b"1"]
    assert (kinds(found[3]), found[3][0].flags) == ([STREAM, END], EVENTS)


def test_a_lone_request_streams(model):
    _, link = model(STREAMED)
    link.ask(1, 2)
    assert kinds(link.gather(1)[1]) == [STREAM, CHUNK, CHUNK, END]


GENERATION = """
for at in range(100):
    yield [f"{one.prompt}{at}" if at < 2 else Finish("stop") if at == one.sampling.max_tokens else None
           for one in requests]
    SLEEP(0.001)
"""


def test_a_member_ends_with_its_finish(model):
    _, link = model(GENERATION, annotation=": list[TextGeneration]")
    bodies = {n: {"prompt": "abc"[n - 1], "sampling": {"max_tokens": n + 1}} for n in (1, 2, 3)}
    link.batch(10, bodies, kind="text-generation")
    order = []
    found = {1: [], 2: [], 3: []}
    while len(order) < 3:
        got = link.read()
        found[got.number].append(got)
        if got.kind == END:
            order.append(got.number)
    assert order == [1, 2, 3]
    for number, name in zip((1, 2, 3), "abc"):
        assert (found[number][0].kind, found[number][0].flags) == (STREAM, EVENT)
        parts = [(got.flags, got.payload) for got in found[number][1:-1]]
        assert parts[:2] == [(TEXT, f"{name}0".encode()), (TEXT, f"{name}1".encode())]
        assert len(parts) == 3


def test_an_error_ends_one_stream(model):
    body = """
yield [1, 1, 1]
yield [Response.error(422, "no cow"), errors.HTTPError(404, "gone"), float("nan")]
yield [2, 2, 2]
"""
    _, link = model(body)
    link.batch(10, {1: 0, 2: 0, 3: 0, 4: 0})
    found = link.gather(1, 2, 3, 4)
    assert [got[-1].flags for got in found.values()] == [UNSERIALISABLE] * 4, "lists of three for four"
    link.batch(20, {5: 0, 6: 0, 7: 0})
    found = link.gather(5, 6, 7)
    assert [kinds(got) for got in found.values()] == [[STREAM, CHUNK, ERROR]] * 3
    assert [(got[-1].flags, got[-1].code) for got in found.values()] == [
        (HANDLER, 422),
        (HANDLER, 404),
        (UNSERIALISABLE, 500),
    ]
    assert "piece 2 of the stream" in found[7][-1].json["message"]


def test_what_a_generator_raises_fails_those_that_are_left(model):
    body = """
yield [Finish(), "a"]
raise ValueError("moo")
"""
    _, link = model(body, annotation=": list[TextGeneration]")
    link.batch(10, {1: {"prompt": ""}, 2: {"prompt": ""}})
    found = link.gather(1, 2)
    assert (found[1][-1].kind, found[2][-1].kind, found[2][-1].flags) == (END, ERROR, RAISED)


def test_a_cancelled_member_leaves_and_the_batch_goes_on(model):
    body = """
for at in range(2000):
    cancelled = [one.cancelled for one in requests]
    if any(cancelled):
        print("cancelled:", cancelled, context.cancelled)
        yield [f"{at}", "last"]
        return
    yield [f"{at}", f"{at}"]
    SLEEP(0.005)
"""
    engine, link = model(body)
    link.batch(10, {1: 0, 2: 0})
    while link.read().number != 2:
        pass
    link.cancel(1)
    found = link.gather(1, 2)
    assert (found[1][-1].kind, found[1][-1].flags, found[1][-1].code) == (ERROR, CANCELLED, 499)
    assert (found[2][-1].kind, found[2][-2].payload) == (END, b"last")
    engine.await_true(lambda: "cancelled: [True, False] False" in engine.printed(), "sight of it")


def test_a_cancelled_member_of_a_call_has_no_result(model):
    body = """
print("begun", flush=True)
while not requests[1].cancelled:
    SLEEP(0.005)
return ["a", "b"]
"""
    engine, link = model(body)
    link.batch(10, {1: 0, 2: 0})
    engine.await_true(lambda: "begun" in engine.printed(), "call")
    link.cancel(2, DEADLINE)
    found = link.gather(1, 2)
    assert (found[1][0].json, found[2][0].kind, found[2][0].flags, found[2][0].code) == ("a", ERROR, CANCELLED, 504)


def test_a_member_that_was_cancelled_before_is_not_handled(model):
    _, link = model("return [len(requests)] * len(requests)")
    link.cancel(2)
    link.ask(3, 0)
    link.read()
    link.batch(10, {1: 0, 2: 0})
    found = link.gather(1, 2)
    assert (found[1][0].json, found[2][0].flags) == (1, CANCELLED)


@pytest.mark.parametrize("streams", [False, True])
def test_a_batch_is_interrupted_when_all_are_cancelled(model, streams):
    body = """
print("begun", flush=True)
try:
    while True:
        SLEEP(0.01)
except BaseException as err:
    print("seen:", type(err).__name__, flush=True)
    raise
return [1, 2]
"""
    if streams:
        body = body.replace("return [1, 2]", "").replace("        SLEEP", "        yield [1, None]\n        SLEEP")
    engine, link = model(body)
    link.batch(10, {1: 0, 2: 0})
    engine.await_true(lambda: "begun" in engine.printed(), "call")
    link.cancel(2)
    link.cancel(1)
    found = link.gather(1, 2)
    assert all((got[-1].kind, got[-1].flags) == (ERROR, CANCELLED) for got in found.values())
    engine.await_true(lambda: "seen: " in engine.printed(), "interruption")
    assert "raised after" not in engine.log()
    link.batch(20, {3: 0, 4: 0})
    link.cancel(3)
    link.cancel(4)
    link.gather(3, 4)


def test_each_stream_has_a_credit_of_its_own(model):
    body = """
for at in range(8):
    yield ["x" * 100_000, f"{at}"]
"""
    _, link = model(body)
    link.batch(10, {1: 0, 2: 0})
    assert [link.read().number for _ in range(6)] == [1, 1, 2, 2, 1, 2]
    assert link.quiet(0.2), "the first member has no credit for a third chunk"
    link.credit(2, 1 << 20)
    assert link.quiet(0.1)
    link.credit(1, 1 << 20)
    found = link.gather(1, 2)
    assert [len(got.payload) for got in found[1][:-1]] == [100_000] * 6
    assert [got.payload for got in found[2][:-1]] == [str(at).encode() for at in range(2, 8)]


def test_a_large_answer_holds_up_no_whole_one(model):
    _, link = model("return [b'x' * 600_000, 'moo', b'y' * 600_000]")
    link.batch(10, {1: 0, 2: 0, 3: 0})
    assert link.read().json == "moo"
    found = link.gather(1, 3)
    for number in (1, 3):
        assert sum(len(got.payload) for got in found[number] if got.kind == CHUNK) == 600_000


def test_a_large_answer_can_be_cancelled(model):
    _, link = model("return [b'x' * 600_000, b'y' * 10, b'z' * 600_000]")
    link.batch(10, {1: 0, 2: 0, 3: 0})
    for _ in range(3):
        link.read()
    link.cancel(1)
    found = link.gather(1, 3)
    assert (found[1][-1].flags, found[3][-1].kind) == (CANCELLED, END)


def test_a_member_that_waits_for_credit_can_be_cancelled(model):
    body = """
for at in range(8):
    yield ["x" * 100_000, f"{at}"]
"""
    _, link = model(body)
    link.batch(10, {1: 0, 2: 0})
    for _ in range(6):
        link.read()
    link.cancel(1)
    found = link.gather(1, 2)
    assert (found[1][-1].kind, found[1][-1].flags, found[2][-1].kind) == (ERROR, CANCELLED, END)
    assert [got.payload for got in found[2][:-1]] == [str(at).encode() for at in range(2, 8)]


def test_the_context_has_the_earliest_deadline(model):
    body = "times = [one.deadline for one in requests]\nreturn [context.deadline == min(times) < max(times)] * 2"
    _, link = model(body)
    frames = [frame(BATCH, 9, struct.pack("<2Q", 1, 2)), request(1, 0, timeout_ms=9000), request(2, 0, timeout_ms=5000)]
    link.send(b"".join(frames))
    assert [got[0].json for got in link.gather(1, 2).values()] == [True, True]


def test_usage_goes_with_the_last_member(model):
    _, link = model("context.usage(tokens=12)\nreturn [1, 2]")
    link.batch(10, {1: 0, 2: 0})
    found = link.gather(1, 2)
    assert (kinds(found[1]), kinds(found[2]), found[2][0].json) == ([RESPONSE], [USAGE, RESPONSE], {"tokens": 12})


def test_uploads_of_members_are_read_and_closed(model):
    engine, link = model("return [len(request.body.bytes) if at else 0 for at, request in enumerate(requests)]")
    link.check(1000, own=False)

    def opened():
        return len(os.listdir(f"/proc/{engine.process.pid}/fd"))

    before = opened()
    for round in range(3):
        base = round * 10
        link.send(frame(BATCH, base + 9, struct.pack("<2Q", base + 1, base + 2)))
        uploads = []
        for number in (base + 1, base + 2):
            ours, theirs = socket.socketpair()
            link.send(request(number, flags=0x20), theirs.fileno())
            theirs.close()
            ours.sendall(b"moo")
            ours.shutdown(socket.SHUT_WR)
            uploads.append(ours)
        found = link.gather(base + 1, base + 2)
        assert [found[base + at][0].json for at in (1, 2)] == [0, 3]
        for upload in uploads:
            upload.close()
    engine.await_true(lambda: opened() == before, "end of the uploads' sockets")


def test_an_upload_that_breaks_off_fails_alone(model):
    pytest.importorskip("pydantic")
    _, link = model("return [[len(one.query)] for one in requests]", annotation=": list[Cow]", before=COW)
    link.send(frame(BATCH, 9, struct.pack("<2Q", 1, 2)))
    for number, body in ((1, b'{"query": "'), (2, b'{"query": "abc"}')):
        ours, theirs = socket.socketpair()
        link.send(request(number, flags=0x20, body_length=16), theirs.fileno())
        theirs.close()
        ours.sendall(body)
        ours.close()
    found = link.gather(1, 2)
    assert (found[1][0].code, found[1][0].json["message"]) == (400, "the body ended after 11 of 16 bytes")
    assert found[2][0].json == [3]


def test_a_model_that_has_to_take_batches_has_a_handler_of_them(start):
    engine = start("def handle_request(request, context): ...", batches=True)
    heard = engine.hear()
    assert (heard["type"], heard["phase"]) == ("failed", "entrypoint")
    assert "sets `max` of [batching], and the model has no `handle_batch`" in heard["message"]
    assert engine.wait() == 78, "it is of no use to try again"
    assert start("def handle_batch(requests, context): ...", batches=True).ready() == "serial"


BOTH = """
{how} handle_request(request, context): return "alone"
{how} handle_batch(requests, context): return ["together"] * len(requests)
"""


def test_both_handlers_beside_each_other(serve):
    for how, concurrency in WAYS.values():
        _, link = serve(BOTH.format(how=how), concurrency)
        link.ask(1, 0)
        assert link.read().json == "alone"
        link.batch(10, {2: 0, 3: 0})
        assert [got[0].json for got in link.gather(2, 3).values()] == ["together"] * 2


def test_the_entry_point_decides(serve):
    _, link = serve(BOTH.format(how="def"), engine={"kind": "python", "module": "model", "function": "handle_batch"})
    link.ask(1, 0)
    assert link.read().json == "together"
    code = "from omni import Request\ndef answer(requests: 'list[Request]', context): return [7]"
    _, link = serve(code, engine={"kind": "python", "module": "model", "function": "answer"})
    link.ask(1, 0)
    assert link.read().json == 7


def test_handlers_of_different_sorts_are_refused(start):
    engine = start("def handle_request(r, c): ...\nasync def handle_batch(rs, c): ...")
    heard = engine.hear()
    assert (heard["type"], heard["phase"]) == ("failed", "entrypoint")
    assert "both `def`, or both `async def`" in heard["message"]


@pytest.mark.parametrize("bad", ["empty", "torn", "foreign"])
def test_batches_that_are_none_end_the_engine(serve, bad):
    for how, concurrency in WAYS.values():
        engine, link = serve(f"{how} handle_batch(requests, context): return [1] * len(requests)", concurrency)
        if bad == "foreign":
            link.send(frame(BATCH, 9, struct.pack("<2Q", 1, 2)) + request(1, 0) + request(3, 0))
        else:
            link.send(frame(BATCH, 9, b"" if bad == "empty" else b"1234567"))
        assert engine.wait() == 1


RANDOM = """
import random
"""
RANDOM_BODY = """
rng = random.Random(requests[0].prompt)
count = len(requests)
ended = set()
for _ in range(rng.randrange(1, 12)):
    step = []
    for at in range(count):
        pick = rng.random()
        if pick < 0.3:
            step.append(None)
        elif pick < 0.85:
            step.append("x" * rng.choice([1, 1, 100, 60_000]))
        elif pick < 0.9:
            step.append(Finish("stop"))
        elif pick < 0.93:
            step.append(Response.error(422, "no cow"))
        elif pick < 0.96:
            step.append(5)
        else:
            step.append(b"y" * 200_000)
    if rng.random() < 0.03:
        raise ValueError("moo")
    if rng.random() < 0.02:
        step.append(None)
    yield step
    if rng.random() < 0.3:
        SLEEP(0.001)
"""


def test_every_member_has_one_last_frame(model):
    _, link = model(RANDOM_BODY, before=RANDOM, annotation=": list[TextGeneration]")
    rng = random.Random(25)
    ended = dict.fromkeys((END, ERROR), 0)
    for round in range(60):
        numbers = [round * 100 + at for at in range(1, rng.randrange(2, 9))]
        gone = [number for number in numbers if rng.random() < 0.2]
        early = [number for number in gone if rng.random() < 0.5]
        for number in early:
            link.cancel(number)
        link.batch(round * 100, {number: {"prompt": f"{number}"} for number in numbers}, kind="text-generation")
        for number in gone:
            if number not in early:
                link.cancel(number)
        for got in link.gather(*numbers).values():
            ended[got[-1].kind] += 1
    assert link.check(9999, own=False) == "", "and nothing follows"
    assert ended[END] > 50 and ended[ERROR] > 50


def test_the_end_of_a_connection_ends_its_batches(model):
    engine, link = model("print('begun', flush=True)\nwhile True:\n    SLEEP(0.01)")
    link.batch(10, {1: 0, 2: 0})
    engine.await_true(lambda: "begun" in engine.printed(), "call")
    link.close()
    other = engine.attach()
    other.check(5, own=False)
    other.send(frame(BATCH, 9, struct.pack("<2Q", 1, 2)) + request(1, 0))
    other.close()
    engine.attach().check(6, own=False)
