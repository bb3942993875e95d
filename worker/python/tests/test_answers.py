"""Results of handlers, and the frames that the scheduler then reads, in all three ways a handler can run."""

from __future__ import annotations

import json
import struct

import pytest
from peer import (
    BYTES,
    CHUNK,
    END,
    ERROR,
    EVENTS,
    HANDLER,
    HEAD,
    JSON,
    RAISED,
    REQUEST,
    RESPONSE,
    STREAM,
    TEXT,
    UNSERIALISABLE,
    USAGE,
    frame,
)

RUNNERS = {
    "serial": ("def", 1, "serial"),
    "threads": ("def", 4, "concurrent"),
    "tasks": ("async def", 4, "concurrent"),
}


@pytest.fixture(params=RUNNERS)
def model(request, start):
    """Starts a model whose handler is defined with `DEF`, under each runner."""
    define, concurrency, mode = RUNNERS[request.param]

    def begin(code):
        engine = start(code.replace("DEF", define), concurrency)
        assert engine.ready() == mode
        return engine, engine.attach()

    return begin


def test_plain_values_are_json(model):
    _, link = model(
        """
        DEF handle_request(request, context):
            return {"text": request.body.json["text"], "id": request.id, "model": context.model}
        """
    )
    got = link.answer(7, {"text": "ä\u2028"})
    assert (got.kind, got.flags, got.code) == (RESPONSE, JSON, 200)
    assert got.json == {"text": "ä\u2028", "id": "r7", "model": "cowsay"}


@pytest.mark.parametrize(
    "expression, value",
    [
        ('"moo"', "moo"),
        ("[1, 2.5, True, None]", [1, 2.5, True, None]),
        ("None", None),
        ("3", 3),
        ("(1, 2)", [1, 2]),
        ("Point(1, [Point(2, [])])", {"x": 1, "next": [{"x": 2, "next": []}]}),
    ],
)
def test_each_kind_of_json_value(model, expression, value):
    _, link = model(
        f"""
        import dataclasses
        @dataclasses.dataclass
        class Point:
            x: int
            next: list
        DEF handle_request(request, context):
            return {expression}
        """
    )
    got = link.answer(1)
    assert (got.kind, got.flags, got.code, got.json) == (RESPONSE, JSON, 200, value)


def test_bytes_and_responses(model):
    _, link = model(
        """
        from omni import Response
        DEF handle_request(request, context):
            return eval(request.body.text)
        """
    )
    got = link.answer(1, b"b'\\x00\\xff'")
    assert (got.kind, got.flags, got.code, got.payload) == (RESPONSE, BYTES, 200, b"\0\xff")
    got = link.answer(2, b"Response(b'png', media_type='image/png', headers={'x-a': 'b'})")
    assert (got.flags, got.code) == (BYTES | HEAD, 200)
    assert got.split() == ({"media_type": "image/png", "headers": [["x-a", "b"]]}, b"png")
    got = link.answer(3, b"Response({'a': 1}, 201)")
    assert (got.flags, got.code, got.json) == (JSON, 201, {"a": 1})
    got = link.answer(4, b"Response('<p>', media_type='text/html')")
    assert (got.flags, got.split()) == (BYTES | HEAD, ({"media_type": "text/html"}, b"<p>"))
    got = link.answer(5, b"Response.error(422, 'no cow')")
    assert (got.kind, got.flags, got.code, got.json) == (ERROR, HANDLER, 422, {"message": "no cow"})
    got = link.answer(6, b"Response.json([1], headers=[('x-a', 'b')])")
    assert (got.flags, got.split()) == (JSON | HEAD, ({"headers": [["x-a", "b"]]}, b"[1]"))


def test_long_bytes_come_in_chunks_with_their_length(model):
    _, link = model(
        """
        DEF handle_request(request, context):
            return bytes(range(256)) * 2500
        """
    )
    link.ask(1)
    first = link.read()
    link.credit(1, 640_000)
    *chunks, end = link.read_until_last(1)
    assert (first.kind, first.flags, first.code, first.json) == (STREAM, BYTES, 200, {"length": 640_000})
    assert all(c.kind == CHUNK and c.flags == BYTES and len(c.payload) <= 256 * 1024 for c in chunks)
    assert b"".join(c.payload for c in chunks) == bytes(range(256)) * 2500
    assert end.kind == END


def test_streams_of_events_and_of_bytes(model):
    _, link = model(
        """
        DEF handle_request(request, context):
            for item in request.body.json:
                yield item.encode() if item == "b" else item
        """
    )
    link.ask(1, ["a", {"x": 1}, 2])
    first, *chunks, end = link.read_until_last(1)
    assert (first.kind, first.flags, first.code, first.payload) == (STREAM, EVENTS, 200, b"")
    assert [(c.kind, c.flags, c.payload) for c in chunks] == [
        (CHUNK, TEXT, b"a"),
        (CHUNK, JSON, b'{"x":1}'),
        (CHUNK, JSON, b"2"),
    ]
    assert (end.kind, end.payload) == (END, b"")
    link.ask(2, ["b", "b"])
    assert [(f.kind, f.flags) for f in link.read_until_last(2)] == [
        (STREAM, BYTES),
        (CHUNK, BYTES),
        (CHUNK, BYTES),
        (END, 0),
    ]
    link.ask(3, [])
    assert [(f.kind, f.flags) for f in link.read_until_last(3)] == [(STREAM, EVENTS), (END, 0)]
    for number, items in ((4, ["a", "b"]), (5, ["b", "a"])):
        link.ask(number, items)
        *_, last = link.read_until_last(number)
        assert (last.kind, last.flags) == (ERROR, UNSERIALISABLE)


def test_a_stream_with_a_media_type(model):
    _, link = model(
        """
        from omni import Response
        DEF handle_request(request, context):
            kind = request.body.text
            return Response.stream(iter(["a\\n", "b\\n"]), media_type=kind, status=203, headers={"x-a": "b"})
        """
    )
    link.ask(1, b"application/x-ndjson")
    first, *chunks, _ = link.read_until_last(1)
    assert (first.flags, first.code) == (BYTES, 203)
    assert first.json == {"media_type": "application/x-ndjson", "headers": [["x-a", "b"]]}
    assert [(c.flags, c.payload) for c in chunks] == [(BYTES, b"a\n"), (BYTES, b"b\n")]
    link.ask(2, b"text/event-stream")
    first, *chunks, _ = link.read_until_last(2)
    assert (first.flags, [c.flags for c in chunks]) == (EVENTS, [TEXT, TEXT])


@pytest.mark.parametrize("make", ["Response", "Response.stream"])
def test_headers_over_the_bound(model, make):
    _, link = model(
        f"""
        from omni import Response
        DEF handle_request(request, context):
            return {make}([], headers={{"x": "y" * int(request.body.text)}})
        """
    )
    assert link.answer(1, b"70000").flags == UNSERIALISABLE
    link.ask(2, b"60000")
    assert link.read_until_last(2)[-1].kind in (RESPONSE, END)


@pytest.mark.parametrize("result", ["object()", "{1: float('nan')}", "{(1, 2): 3}", "'\\ud800'", "1j", "deep()"])
def test_a_value_that_is_not_json_is_an_error_with_its_reason_in_the_log(model, result):
    engine, link = model(
        f"""
        def deep():
            a = []
            a.append(a)
            return a
        DEF handle_request(request, context):
            return {result}
        """
    )
    got = link.answer(9)
    assert (got.kind, got.flags, got.code) == (ERROR, UNSERIALISABLE, 500)
    engine.await_log("ERROR [r9] the result cannot be sent: ")


def test_json_over_the_bound_says_stream_it(model):
    _, link = model(
        """
        DEF handle_request(request, context):
            return "x" * (16 * 1024 * 1024)
        """
    )
    got = link.answer(1)
    assert (got.kind, got.flags) == (ERROR, UNSERIALISABLE)
    assert "stream it" in got.json["message"]


def test_a_handler_that_raises(model):
    engine, link = model(
        """
        import sys
        DEF handle_request(request, context):
            if request.body.bytes == b"exit":
                sys.exit(3)
            raise ValueError("first\\nsecond")
        """
    )
    got = link.answer(1)
    assert (got.kind, got.flags, got.code) == (ERROR, RAISED, 500)
    engine.await_log("ERROR [r1] second")
    lines = engine.log().splitlines()
    assert all(line.startswith("ERROR [r1] ") for line in lines), lines
    assert "ERROR [r1] ValueError: first" in lines
    assert not any("_engine" in line for line in lines)
    got = link.answer(2, b"exit")
    assert (got.kind, got.flags) == (ERROR, RAISED)
    assert link.answer(3).kind == ERROR  # and it serves on


def test_http_errors_and_bodies_that_are_not_json(model):
    _, link = model(
        """
        from omni import errors
        DEF handle_request(request, context):
            if request.body.bytes == b"teapot":
                raise errors.HTTPError(418, "short and stout")
            return request.body.json
        """
    )
    for number, body in enumerate([b"", b"{", b"\xff", b"NaN", b"1 2", b"[" * 100_000]):
        got = link.answer(number, body)
        assert (got.kind, got.flags, got.code) == (ERROR, HANDLER, 400), body
        assert "JSON" in got.json["message"]
    got = link.answer(77, b"teapot")
    assert (got.kind, got.flags, got.code, got.json) == (ERROR, HANDLER, 418, {"message": "short and stout"})
    assert link.answer(78, b' {"a": 1}\n').json == {"a": 1}


def test_http_errors_of_any_kind_answer_their_request_only(model):
    _, link = model(
        """
        from omni import errors
        class Own(errors.HTTPError):
            def __init__(self, status, message):
                self.status, self.message = status, message
        class Bare(errors.HTTPError):
            def __init__(self):
                pass
        DEF handle_request(request, context):
            raise [
                lambda: errors.BadRequest(ValueError("no")),
                lambda: errors.HTTPError(422.0, [{"loc": 1}]),
                lambda: Own(409, "taken"),
                lambda: Own("409", {}),
                lambda: Bare(),
            ][request.body.json]()
        """
    )
    for number, (origin, status, message) in enumerate(
        [
            (HANDLER, 400, "no"),
            (HANDLER, 422, "[{'loc': 1}]"),
            (HANDLER, 409, "taken"),
            (RAISED, 500, "Own: ('409', {})"),
            (RAISED, 500, "Bare: "),
        ]
    ):
        got = link.answer(number, number)
        assert (got.kind, got.flags, got.code, got.json["message"]) == (ERROR, origin, status, message)


def test_an_error_in_mid_stream_is_the_last_frame(model):
    _, link = model(
        """
        DEF handle_request(request, context):
            yield "a"
            raise ValueError("broken")
        """
    )
    link.ask(1)
    assert [(f.kind, f.flags) for f in link.read_until_last(1)] == [(STREAM, EVENTS), (CHUNK, TEXT), (ERROR, RAISED)]


def test_usage_comes_before_the_last_frame(model):
    _, link = model(
        """
        DEF handle_request(request, context):
            context.usage(tokens=1)
            context.usage(tokens=2, seconds=0.5)
            assert context.metrics == {"tokens": 3, "seconds": 0.5}
            if request.body.bytes:
                raise ValueError
            return 1
        """
    )
    for number, body, last in ((1, b"", RESPONSE), (2, b"x", ERROR)):
        link.ask(number, body)
        usage, end = link.read_until_last(number)
        assert (usage.kind, usage.json, end.kind) == (USAGE, {"tokens": 3, "seconds": 0.5}, last)


def test_the_logger_tags_its_lines(model):
    engine, link = model(
        """
        def setup(context):
            context.logger.info("warming up")
        DEF handle_request(request, context):
            context.logger.warning("two\\nlines")
            print("plain")
        """
    )
    link.answer(5)
    engine.await_log("WARNING [r5] two\nWARNING [r5] lines\n")
    assert engine.log().startswith("INFO [-] warming up\n")
    engine.await_true(lambda: engine.printed() == "plain\n", "output")


def test_the_head_of_a_request(model):
    _, link = model(
        """
        import time
        DEF handle_request(request, context):
            left = request.deadline - time.monotonic()
            assert context.deadline == request.deadline and not context.cancelled
            return [request.method, request.session, request.headers["X-A"], dict(request.headers), 25 < left <= 30]
        """
    )
    got = link.answer(1, method="PUT", session="s", timeout_ms=30_000, headers=[["x-a", "b"]])
    assert got.json == ["PUT", "s", "b", {"x-a": "b"}, True]


def test_large_requests_between_small_ones(model):
    _, link = model(
        """
        DEF handle_request(request, context):
            return len(request.body.json)
        """
    )
    for number, size in enumerate([1, 70_000, 2, 3_000_000, 3, 65_500, 65_536, 65_537, 10_000_000, 4]):
        assert link.answer(number, json.dumps("x" * size).encode()).json == size


@pytest.mark.parametrize("define, concurrency", [("def", 1), ("def", 3), ("async def", 3)])
def test_the_head_of_a_request_is_parsed_only_when_something_in_it_is_asked_for(serve, define, concurrency):
    _, link = serve(f"{define} handle_request(request, context):\n    return request.body.json\n", concurrency)
    for number in (1, 2):
        link.send(frame(REQUEST, number, struct.pack("<I", 4) + b"junk" + b"7", JSON))
        got = link.read()
        assert (got.kind, got.number, got.payload) == (RESPONSE, number, b"7")
