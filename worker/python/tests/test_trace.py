"""`context.trace`: what of a request's headers a handler passes on, on a node, in a local run and in a test."""

from __future__ import annotations

import json

import pytest
from local import ask, manifest_is_read, serving

from omni import Context, Request, Trace
from omni.context import Instance
from omni.testing import TestClient

TRACE, SPAN = "12345678901234567890123456789012", "1234567890123456"
SAMPLED = f"00-{TRACE}-{SPAN}-01"


def trace(*parents, state=None):
    headers = [("traceparent", ", ".join(parents))] if parents else []
    headers += [] if state is None else [("tracestate", state)]
    return Context(Instance("m", "i", "", None, "cpu"), Request(headers=headers)).trace


def test_a_trace_has_the_parts_of_its_headers():
    found = trace(SAMPLED, state="a=1, b=2")
    assert (found.trace_id, found.span_id, found.sampled, found.state) == (TRACE, SPAN, True, "a=1,b=2")
    assert found.headers() == {"traceparent": SAMPLED, "tracestate": "a=1,b=2"}
    unsampled = trace(f"00-{TRACE}-{SPAN}-00")
    assert (unsampled.sampled, unsampled.headers()) == (False, {"traceparent": f"00-{TRACE}-{SPAN}-00"})
    assert isinstance(found, Trace)
    assert repr(found) == f"Trace(trace_id='{TRACE}', span_id='{SPAN}', sampled=True)"


@pytest.mark.parametrize(
    ("given", "passed_on"),
    [
        (f"00-{TRACE}-{SPAN}-ff", f"00-{TRACE}-{SPAN}-03"),
        (f"cc-{TRACE}-{SPAN}-03", f"00-{TRACE}-{SPAN}-01"),
        (f"cc-{TRACE}-{SPAN}-01-more", SAMPLED),
        (f"cc-{TRACE}-{SPAN}-01.more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"{SAMPLED}-more", None),
        (f"{SAMPLED}, {SAMPLED}", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{'ABCDEF' * 5}AB-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}-0", None),
        (f"0-{TRACE}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN[1:]}-01", None),
        (f"00_{TRACE}_{SPAN}_01", None),
        ("", None),
        ("é" * 55, None),
    ],
)
def test_what_is_not_valid_is_left_out(given, passed_on):
    found = trace(given, state="a=1")
    if passed_on is not None:
        assert found.headers() == {"traceparent": passed_on, "tracestate": "a=1"}
        return
    assert (found.headers(), found.sampled, found.state) == ({}, False, None)
    assert (len(found.trace_id), len(found.span_id)) == (32, 16), "one of its own"


@pytest.mark.parametrize("state", ["", " , ", "no member", "a=1=2", "a=\x7f", "a=é", f"a={'1' * 511}", "a=1," * 33])
def test_a_state_that_is_not_valid_is_left_out(state):
    assert trace(SAMPLED, state=state).headers() == {"traceparent": SAMPLED}


def test_a_trace_of_its_own_stays_that_of_its_request():
    context = Context.inactive()
    assert context.trace is context.trace
    assert context.trace.trace_id != Context.inactive().trace.trace_id


HANDLER = """
def handle_request(request, context):
    return {"headers": context.trace.headers(), "id": context.trace.trace_id}
"""
BATCH = """
def handle_batch(requests, context):
    return [context.trace.trace_id for _ in requests]
"""


def test_in_a_test_client(tmp_path):
    (tmp_path / "model.py").write_text(HANDLER)
    with TestClient(tmp_path) as client:
        answer = client.run(json={}, headers={"traceparent": SAMPLED}).json
        assert answer == {"headers": {"traceparent": SAMPLED}, "id": TRACE}
        assert client.run(json={}).json["headers"] == {}


@manifest_is_read
def test_a_batch_has_the_trace_of_its_first_member(tmp_path):
    (tmp_path / "model.py").write_text(BATCH)
    (tmp_path / "omni.toml").write_text("[batching]\nmax = 4\n")
    with TestClient(tmp_path) as client:
        answers = client.batch([1, 2], headers={"traceparent": SAMPLED})
        assert [answer.json for answer in answers] == [TRACE, TRACE]


def test_in_a_local_run(tmp_path):
    headers = {"traceparent": SAMPLED, "tracestate": "a=1"}
    with serving(tmp_path, HANDLER) as server:
        status, _, answer = ask(server, {}, headers)
        assert (status, json.loads(answer)["result"]) == (200, {"headers": headers, "id": TRACE})
