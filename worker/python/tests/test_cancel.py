"""Cancellation: it reaches busy code, tears no frame, and every request still gets exactly one last frame."""

from __future__ import annotations

import random

import pytest
from peer import CANCELLED, CHUNK, CLIENT_GONE, DEADLINE, END, ERROR, RESPONSE, SHUTDOWN, STREAM

# An engine that was forked is as good as another: nothing shows it like being interrupted.
pytestmark = pytest.mark.parametrize("origin", ["alone", "forked"], indirect=True)
MODES = [pytest.param("def", 1, id="serial"), pytest.param("def", 4, id="threads")]
ALL = [*MODES, pytest.param("async def", 4, id="tasks")]


@pytest.mark.parametrize("define, concurrency", MODES)
@pytest.mark.parametrize("reason, name, status", [(CLIENT_GONE, "Cancelled", 499), (DEADLINE, "DeadlineExceeded", 504)])
def test_a_cancellation_reaches_a_busy_loop_through_broad_handlers(serve, define, concurrency, reason, name, status):
    engine, link = serve(
        """
        def handle_request(request, context):
            if request.body.bytes:
                return "ok"
            print("busy", flush=True)
            try:
                while True:
                    try:
                        sum(range(100))
                    except Exception:
                        pass
            except BaseException as err:
                print(type(err).__name__, context.cancelled, flush=True)
                raise
        """,
        concurrency,
    )
    link.ask(1)
    engine.await_true(lambda: "busy" in engine.printed(), "busy handler")
    link.cancel(1, reason)
    got = link.read()
    assert (got.kind, got.flags, got.code, got.number) == (ERROR, CANCELLED, status, 1)
    assert engine.printed() == f"busy\n{name} True\n"
    assert link.answer(2, b"x").kind == RESPONSE
    said = engine.log()
    if reason == DEADLINE:
        assert said.startswith("WARNING [r1] the deadline passed while the handler was here\n"), said
        assert "in handle_request" in said and all(line.startswith("WARNING [r1] ") for line in said.splitlines())
    else:
        assert said == ""


def test_a_sleeping_handler_is_woken(serve):
    engine, link = serve(
        """
        import time
        def handle_request(request, context):
            print("busy", flush=True)
            time.sleep(3600)
        """
    )
    link.ask(1)
    engine.await_true(lambda: engine.printed(), "busy handler")
    link.cancel(1, SHUTDOWN)
    assert link.read().flags == CANCELLED


def test_an_async_handler_sees_cancelled_error(serve):
    engine, link = serve(
        """
        import asyncio
        async def handle_request(request, context):
            print("busy", flush=True)
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                print("seen", context.cancelled, flush=True)
                raise
        """
    )
    link.ask(1)
    engine.await_true(lambda: engine.printed(), "busy handler")
    link.cancel(1)
    got = link.read()
    assert (got.kind, got.flags, got.number) == (ERROR, CANCELLED, 1)
    assert engine.printed() == "busy\nseen True\n"


@pytest.mark.parametrize("define, concurrency", ALL)
def test_a_cancel_may_come_before_its_request(serve, define, concurrency):
    engine, link = serve(
        f"""
        {define} handle_request(request, context):
            print(request.id, flush=True)
        """,
        concurrency,
    )
    link.cancel(7)
    # The two wires are not ordered: another request's cancellation after it shows that the first was read.
    link.answer(1)
    for number in range(100, 200):
        link.ask(number)
        link.cancel(number)
        link.read()
    got = link.answer(7)
    assert (got.kind, got.flags, got.number) == (ERROR, CANCELLED, 7)
    assert "r7\n" not in engine.printed()


@pytest.mark.parametrize("define, concurrency", ALL)
def test_a_stream_that_waits_for_credit_is_cancelled(serve, define, concurrency):
    engine, link = serve(
        f"""
        import asyncio
        {define} handle_request(request, context):
            try:
                while True:
                    yield "x" * 100_000
            except BaseException as err:
                print(type(err).__name__, flush=True)
                raise
        """,
        concurrency,
    )
    link.ask(1)
    assert [link.read().kind for _ in range(3)] == [STREAM, CHUNK, CHUNK]
    assert link.quiet(0.05)
    link.credit(1, 100_000)
    assert link.read().kind == CHUNK
    assert link.quiet(0.05)
    link.cancel(1)
    got = link.read()
    assert (got.kind, got.flags) == (ERROR, CANCELLED)
    engine.await_true(lambda: engine.printed() in ("Cancelled\n", "CancelledError\n"), "a word of it")


def test_a_generator_that_goes_on_regardless_does_not_wait_for_credit(serve):
    _, link = serve(
        """
        import asyncio
        async def handle_request(request, context):
            yield "a"
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass
            while True:
                yield "x" * 100_000
        """,
        4,
    )
    link.ask(1)
    assert [link.read().kind for _ in range(2)] == [STREAM, CHUNK]
    link.cancel(1)
    *chunks, last = link.read_until_last(1)
    assert [chunk.kind for chunk in chunks] == [CHUNK, CHUNK]
    assert (last.kind, last.flags) == (ERROR, CANCELLED)


@pytest.mark.parametrize("define, concurrency", ALL)
def test_a_stream_keeps_within_its_credit_and_requests_wait_meanwhile(serve, define, concurrency):
    _, link = serve(
        f"""
        {define} handle_request(request, context):
            for _ in range(request.body.json):
                yield "x" * 10_000
        """,
        concurrency,
    )
    link.ask(1, 100)
    header = 16  # a chunk costs its header, too
    credit, spent, total, last = 256 * 1024, 0, 0, None
    while last != END:
        while credit - spent < 10_000 + header and total < 1_000_000:
            if concurrency == 1:
                link.ask(1000 + total, 0)  # reading on for credit, the engine meets requests
            link.credit(1, 4_000)  # too small for a chunk: it has to add up
            credit += 4_000
        got = link.read()
        last = got.kind
        assert got.number == 1
        if last == CHUNK:
            total += len(got.payload)
            spent += header + len(got.payload)
        assert spent <= credit
    assert total == 1_000_000
    if concurrency == 1:
        assert link.read().number == 1000 + 260_000


def test_a_cancelled_request_in_line_never_runs(serve):
    engine, link = serve(
        """
        import time
        def handle_request(request, context):
            print(request.id, flush=True)
            if request.id == "r1":
                time.sleep(3600)
        """
    )
    for number in (1, 2, 3):
        link.ask(number)
    engine.await_true(lambda: engine.printed(), "busy handler")
    link.cancel(2)
    link.cancel(1)
    assert [(f.number, f.kind, f.flags) for f in (link.read(), link.read(), link.read())] == [
        (1, ERROR, CANCELLED),
        (2, ERROR, CANCELLED),
        (3, RESPONSE, 0),
    ]
    assert engine.printed() == "r1\nr3\n"


@pytest.mark.parametrize("define, concurrency", ALL)
def test_a_handler_that_swallows_a_cancellation_gets_one_last_frame(serve, define, concurrency):
    engine, link = serve(
        f"""
        import asyncio, time
        {define} handle_request(request, context):
            if request.body.bytes:
                return 5
            print("busy", flush=True)
            try:
                while True:
                    {"pass" if define == "def" else "await asyncio.sleep(0)"}
            except BaseException:
                pass
            return "stubborn"
        """,
        concurrency,
    )
    link.ask(1)
    engine.await_true(lambda: engine.printed(), "busy handler")
    link.cancel(1)
    assert link.read().json == "stubborn"
    assert link.answer(2, b"x").json == 5


@pytest.mark.parametrize("define, concurrency", ALL)
@pytest.mark.parametrize("shape", ["whole", "stream"])
def test_no_frame_is_ever_torn_or_lost(serve, define, concurrency, shape):
    """Cancels fall anywhere into handlers, generators and writes. Whatever they hit, every request gets exactly one
    last frame and the frames stay whole."""
    seed = random.randrange(1 << 32)
    dice = random.Random(seed)
    wait = "asyncio.sleep(0)"
    _, link = serve(
        f"""
        import asyncio
        {define} handle_request(request, context):
            for i in range(20):
                sum(range(i * 10))
                {"pass" if define == "def" else "await " + wait}
                {"yield 'x' * (i * 40)" if shape == "stream" else "pass"}
            {"return" if shape == "stream" else "return 'y' * 5000"}
        """,
        concurrency,
    )
    last, rounds, cancelled = {}, 60, 0
    for turn in range(rounds):
        numbers = range(turn * 8, turn * 8 + 8)
        doomed = [n for n in numbers if dice.random() < 0.5]
        if concurrency == 1:
            for n in numbers:
                link.ask(n)
            for n in doomed:
                link.cancel(n)
        else:
            for n in numbers[:4]:
                link.ask(n)
            for n in doomed:
                link.cancel(n)
            for n in numbers[4:]:
                link.ask(n)
        while not all(n in last for n in numbers):
            got = link.read()
            assert got.number in numbers and got.number not in last, f"seed {seed}"
            if got.kind in (RESPONSE, END, ERROR):
                last[got.number] = got
                cancelled += got.kind == ERROR
                assert got.kind != ERROR or (got.flags == CANCELLED and got.number in doomed), f"seed {seed}"
    assert link.answer(1 << 40).number == 1 << 40 if shape == "whole" else True
    assert cancelled, f"no cancel hit anything, seed {seed}"


@pytest.mark.parametrize("define, concurrency", ALL)
@pytest.mark.parametrize("wire", ["data", "cancel", "both"])
def test_the_end_of_the_connection_cancels_everything(serve, define, concurrency, wire):
    engine, link = serve(
        f"""
        import asyncio, time
        {define} handle_request(request, context):
            if request.body.bytes:
                return "alive"
            try:
                print("busy", flush=True)
                while True:
                    {"sum(range(100))" if define == "def" else "await asyncio.sleep(0.001)"}
            except BaseException as err:
                print("cancelled", context.cancelled, flush=True)
                raise
        """,
        concurrency,
    )
    link.ask(1)
    engine.await_true(lambda: engine.printed(), "busy handler")
    if wire in ("data", "both"):
        link.data.close()
    if wire in ("cancel", "both"):
        link._cancel.close()
    engine.await_true(lambda: engine.printed() == "busy\ncancelled True\n", "cancellation")
    again = engine.attach()
    assert again.answer(1, b"x").json == "alive"
    assert engine.log() == ""
    link.close()
