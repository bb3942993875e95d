"""Health of a running engine: its own check, and the model's `healthcheck`."""

from __future__ import annotations

import os

import pytest

WAYS = [("def", 1), ("def", 3), ("async def", 1)]


@pytest.mark.parametrize("define, concurrency", WAYS)
def test_a_healthcheck_reports_its_problem(start, define, concurrency):
    engine = start(
        f"""
        told = []
        {define} healthcheck(context):
            told.append(context.instance)
            if len(told) == 3:
                return False
            if len(told) == 4:
                raise OSError("no disk")
        {define} handle_request(request, context): return len(told)
        """,
        concurrency,
    )
    engine.ready()
    link = engine.attach()
    assert link.check(7) == ""
    assert link.answer(1).json == 2, "once at the start and once when it was asked"
    assert link.check(8, own=False) == ""
    assert link.answer(2).json == 2, "the engine itself answered"
    assert link.check(9) == "healthcheck returned False"
    raised = link.check(10)
    assert raised.startswith("healthcheck raised\n") and raised.endswith("OSError: no disk")
    assert "in healthcheck" in raised and "_engine" not in raised
    assert link.check(11) == "", "well again"
    assert link.answer(3).json == 5


@pytest.mark.parametrize("define, concurrency", WAYS)
def test_a_model_without_a_healthcheck_is_healthy(start, define, concurrency):
    engine = start(f"{define} handle_request(request, context): return 1", concurrency)
    engine.ready()
    link = engine.attach()
    assert link.check(1) == link.check(2, own=False) == ""
    assert link.answer(1).json == 1


@pytest.mark.parametrize("define, concurrency", WAYS)
def test_a_long_story_fits_into_the_answer(start, define, concurrency):
    engine = start(
        f"""
        well = True
        {define} healthcheck(context):
            if not well: raise OSError("\\ud800" * 100000 + "the end")
        {define} handle_request(request, context):
            global well
            well = False
        """,
        concurrency,
    )
    engine.ready()
    link = engine.attach()
    link.answer(1)
    assert link.check(2).endswith("the end")


def test_the_check_runs_in_the_thread_of_setup(start):
    engine = start(
        """
        import threading
        def setup(context):
            global first
            first = threading.get_ident()
        def healthcheck(context): return first == threading.get_ident()
        def handle_request(request, context): return first == threading.get_ident()
        """,
        3,
    )
    engine.ready()
    link = engine.attach()
    assert link.check(1) == ""
    assert link.answer(2).json is False


def test_a_stopped_engine_sends_nothing(start):
    engine = start("def handle_request(request, context): return 1")
    engine.ready()
    link = engine.attach()
    os.kill(engine.process.pid, 19)
    link.send(b"\x00\x00\x00\x00\x04\x00\x00\x00" + (1).to_bytes(8, "little"))
    assert link.quiet(0.1)
    os.kill(engine.process.pid, 18)
    assert link.read().number == 1
