"""The engine of a model that is a server with the OpenAI API, beside a double of such a server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from peer import (
    BYTES,
    CANCELLED,
    CHUNK,
    END,
    ERROR,
    EVENT,
    HANDLER,
    HEAD,
    JSON,
    RAISED,
    RESPONSE,
    STREAM,
)

from omni._engine import wire
from omni._engine.openai import metrics, sleep
from omni._engine.openai.http import ask as ask_server
from omni._engine.openai.server import Server

DOUBLE = (Path(__file__).parent / "openai_double.py").read_text(encoding="utf-8")
SERVE = {"kind": "openai", "command": [sys.executable, "{model_dir}/model.py", "{socket}"]}
USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 2,
    "total_tokens": 9,
    "prompt_tokens_details": {"cached_tokens": 3},
    "completion_tokens_details": {"reasoning_tokens": 1},
}
USED = {"prompt_tokens": 7, "completion_tokens": 2, "cached_tokens": 3, "reasoning_tokens": 1}


@pytest.fixture
def server(start):
    """An engine whose server is ready, and a data connection."""

    def begin(engine=SERVE, concurrency=4, **changes):
        engine = start(DOUBLE, concurrency, engine=engine, **changes)
        assert engine.ready() == "concurrent"
        return engine, engine.attach()

    return begin


def delta(content=None, finish=None, **fields):
    fields = {**({} if content is None else {"content": content}), **fields}
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def whole(*events, finish="stop", usage=True):
    """The script of an answer in the usual form of a chat."""
    last = [{"choices": [], "usage": USAGE}] if usage else []
    return {"events": [delta(role="assistant", content=None), *events, delta(finish=finish), *last, "[DONE]"]}


def chat(script, **fields):
    return {"messages": [{"role": "user", "content": json.dumps(script)}], **fields}


def ask(link, number, body, kind="text-generation"):
    """Flags and content of each chunk of an answer."""
    link.ask(number, body, kind=kind)
    frames = link.gather(number)[number]
    assert (frames[0].kind, frames[0].flags) == (STREAM, EVENT), frames
    assert frames[-1].kind == END, frames
    assert all(got.kind == CHUNK for got in frames[1:-1])
    return [got.json if got.flags == EVENT else got.payload.decode() for got in frames[1:-1]]


def failure(link, number, body, kind="text-generation"):
    link.ask(number, body, kind=kind)
    last = link.gather(number)[number][-1]
    assert last.kind == ERROR, last
    return last.flags, last.code, last.json.get("message"), last.json.get("code")


def asked(engine):
    lines = (engine.directory / "asked").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def child_of(engine):
    (child,) = Path(f"/proc/{engine.process.pid}/task/{engine.process.pid}/children").read_text().split()
    return int(child)


def finish(reason, usage=USED):
    return {"type": "finish", "reason": reason, **({} if usage is None else {"usage": usage})}


@pytest.mark.parametrize("place", ["{socket}", "{port}"])
def test_text_of_a_chat_and_of_a_prompt(server, place):
    engine, link = server({"kind": "openai", "command": [sys.executable, "{model_dir}/model.py", place]})
    assert ask(link, 1, chat(whole(delta("Hel"), delta("lo")))) == ["Hel", "lo", finish("stop")]
    texts = [{"choices": [{"index": 0, "text": "ä", "finish_reason": None}]}]
    texts += [{"choices": [{"index": 0, "text": "", "finish_reason": "length"}], "usage": USAGE}]
    assert ask(link, 2, {"prompt": json.dumps({"events": texts})}) == ["ä", finish("length")]
    models, first, second = asked(engine)
    assert models["path"] == "/v1/models"
    assert first["path"] == "/v1/chat/completions" and second["path"] == "/v1/completions"
    for got in (first, second):
        expected = {"model": "/served/by-its-own-name", "stream": True, "stream_options": {"include_usage": True}}
        assert {name: got["body"][name] for name in expected} == expected


def test_all_that_a_request_asks_for_reaches_the_server(server):
    engine, link = server()
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    sampling = {
        "max_tokens": 5,
        "min_tokens": 1,
        "temperature": 0.0,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.1,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "repetition_penalty": 1.5,
        "seed": 0,
        "ignore_eos": True,
    }
    script = whole(delta("a"))
    body = chat(
        script,
        tools=[tool],
        tool_choice={"type": "function", "function": {"name": "f"}},
        parallel_tool_calls=False,
        template_variables={"enable_thinking": False},
        reasoning_effort="low",
        continue_final_message=True,
        sampling={**sampling, "logit_bias": [[7, -100]]},
        stop=["x"],
        response_format={"type": "json_schema", "schema": {"type": "object"}},
        logprobs=2,
    )
    ask(link, 1, body)
    got = asked(engine)[-1]["body"]
    assert got == {
        "model": "/served/by-its-own-name",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": body["messages"],
        "tools": [tool],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": False,
        "logprobs": True,
        "top_logprobs": 2,
        "chat_template_kwargs": {"enable_thinking": False},
        "reasoning_effort": "low",
        "continue_final_message": True,
        "add_generation_prompt": False,
        **sampling,
        "repeat_penalty": 1.5,
        "logit_bias": {"7": -100.0},
        "stop": ["x"],
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}},
    }
    ask(link, 3, chat(script, reasoning_effort="none", template_variables={"thinking": True}))
    got = asked(engine)[-1]["body"]
    assert got["chat_template_kwargs"] == {"enable_thinking": False, "thinking": True} and "reasoning_effort" not in got
    ask(link, 2, {"prompt": json.dumps(script), "logprobs": 0})
    got = asked(engine)[-1]["body"]
    assert got.keys() == {"model", "stream", "stream_options", "prompt", "logprobs"} and got["logprobs"] == 0


def test_reasoning_tokens_and_tool_calls(server):
    _, link = server()
    calls = [
        [{"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}],
        [{"index": 0, "function": {"arguments": '{"a"'}}],
        [{"index": 1, "id": "c2", "function": {"name": "g"}}, {"index": 0, "function": {"arguments": ": 1}"}}],
    ]
    script = whole(
        delta(reasoning_content="why"), delta(reasoning="!"), *(delta(tool_calls=call) for call in calls), finish="stop"
    )
    assert ask(link, 1, chat(script)) == [
        {"type": "reasoning", "text": "why"},
        {"type": "reasoning", "text": "!"},
        {"type": "tool-call", "name": "f", "arguments": '{"a": 1}', "id": "c1"},
        {"type": "tool-call", "name": "g", "arguments": "{}", "id": "c2"},
        finish("tool-calls"),
    ]
    top = [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1.5}]
    token = delta("a")
    token["choices"][0]["logprobs"] = {"content": [{"token": "a", "id": 4, "logprob": -0.5, "top_logprobs": top}]}
    half = delta("\ufffd")
    half["choices"][0]["logprobs"] = {"content": [{"token": "\ufffd", "bytes": [0xC3], "logprob": -2.0}]}
    marker = delta("shown")
    marker["choices"][0]["logprobs"] = {"content": [{"token": "<mark>", "logprob": -2.0}]}
    assert ask(link, 2, chat(whole(token, half, marker), logprobs=2)) == [
        {
            "type": "token",
            "text": "a",
            "id": 4,
            "logprob": -0.5,
            "top": [{"text": "a", "logprob": -0.5}, {"text": "b", "logprob": -1.5}],
        },
        {"type": "token", "text": "\ufffd", "bytes": [0xC3], "logprob": -2.0},
        "shown",
        finish("stop"),
    ]
    columns = {"tokens": ["a", "b"], "token_logprobs": [None, -1.0], "top_logprobs": [None, {"b": -1.0}]}
    script = {"events": [{"choices": [{"text": "ab", "logprobs": columns, "finish_reason": "stop"}]}]}
    assert ask(link, 3, {"prompt": json.dumps(script), "logprobs": 1}) == [
        {"type": "token", "text": "a"},
        {"type": "token", "text": "b", "logprob": -1.0, "top": [{"text": "b", "logprob": -1.0}]},
        finish("stop", None),
    ]


def test_tool_calls_that_have_no_index_of_their_own(server):
    _, link = server()
    two = [
        {"id": at, "function": {"name": at, "arguments": arguments}} for at, arguments in (("f", "{}"), ("g", "[1]"))
    ]
    for calls in (two, [{"index": 0, **call} for call in two]):
        assert ask(link, 1, chat(whole(delta(tool_calls=calls), finish="tool_calls")))[:2] == [
            {"type": "tool-call", "name": "f", "arguments": "{}", "id": "f"},
            {"type": "tool-call", "name": "g", "arguments": "[1]", "id": "g"},
        ]


def test_tokens_of_one_character(server):
    _, link = server()
    parts = []
    for text, part in (("", [0xF0, 0x9F]), ("\U0001f600", [0x98, 0x80])):
        parts.append(delta(text))
        parts[-1]["choices"][0]["logprobs"] = {"content": [{"token": "?", "bytes": part, "logprob": -1.0}]}
    found = ask(link, 1, chat(whole(*parts), logprobs=0))
    assert [piece.get("bytes") for piece in found[:2]] == [[0xF0, 0x9F], [0x98, 0x80]]


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_answer_that_the_server_gave_up_is_not_complete(server, reason):
    engine, link = server()
    assert failure(link, 1, chat(whole(delta("half"), finish=reason)))[:2] == (RAISED, 500)
    engine.await_log("the server gave the request up")


def test_a_full_backlog_is_waited_for(tmp_path):
    path = str(tmp_path / "socket")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(1)

    def serve():
        for _ in range(20):
            connection, _ = listener.accept()
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            connection.close()

    async def run():
        asked = [ask_server(path, "GET", "/") for _ in range(20)]
        waiting = asyncio.gather(*asked)
        await asyncio.sleep(0)  # all connect, and most find no place
        return await asyncio.gather(waiting, asyncio.get_running_loop().run_in_executor(None, serve))

    exchanges, _ = asyncio.run(run())
    assert [exchange.status for exchange in exchanges] == [200] * 20
    listener.close()


CONTEXT = "context_length_exceeded"
LLAMA = {
    "error": {
        "code": 400,
        "message": "request (818 tokens) exceeds the available context size (512 tokens), try increasing it",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": 818,
        "n_ctx": 512,
    }
}
VLLM = {
    "error": {
        "message": "This model's maximum context length is 512 tokens. However, you requested 818 tokens.",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    }
}


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, LLAMA, (HANDLER, 400, LLAMA["error"]["message"], CONTEXT)),
        (400, VLLM, (HANDLER, 400, VLLM["error"]["message"], CONTEXT)),
        (400, {"error": {"message": "no", "code": CONTEXT}}, (HANDLER, 400, "no", CONTEXT)),
        (422, {"detail": "bad field"}, (HANDLER, 400, "bad field", None)),
        (422, {"detail": [{"msg": "a"}, {"msg": "b", "input": "x" * 100_000}]}, (HANDLER, 400, "a; b", None)),
        (400, {"object": "error", "message": "bad top_k", "code": 400}, (HANDLER, 400, "bad top_k", None)),
        (503, {"error": {"message": "loading", "code": 503}}, (HANDLER, 503, "loading", None)),
        (501, {"error": {"message": "no embeddings", "code": 501}}, (HANDLER, 501, "no embeddings", None)),
        (404, {"error": {"message": "/secret/path", "code": 404}}, (RAISED, 500, None, None)),
        (500, {"error": {"message": "CUDA", "code": 500}}, (RAISED, 500, None, None)),
        (401, "not an object", (RAISED, 500, None, None)),
    ],
)  # fmt: skip
def test_errors_of_the_server(server, status, body, expected):
    engine, link = server()
    got = failure(link, 1, chat({"status": status, "body": body}))
    if expected[0] == RAISED:
        assert got[:2] == expected[:2]
        engine.await_log("the server answered with status")
    else:
        assert got == expected
    assert ask(link, 2, chat(whole(delta("a"))))[0] == "a", "the next request is served"


def test_a_failure_in_the_middle_of_a_stream(server):
    engine, link = server()
    link.ask(
        1, chat({"events": [delta("a"), {"error": {"message": "gone wrong", "code": 500}}]}), kind="text-generation"
    )
    frames = link.gather(1)[1]
    assert [got.kind for got in frames] == [STREAM, CHUNK, ERROR] and frames[-1].flags == RAISED
    engine.await_log("gone wrong")
    for number, script in enumerate(
        [
            {"events": [delta("a")]},
            {"events": [delta("a"), "[DONE]"]},
            {"events": [delta("a"), "{nonsense"]},
            {"events": [delta("a"), "[]"]},
            {"events": [delta(tool_calls=[7])]},
            {"events": [delta(tool_calls=[{"index": "x", "function": {}}])]},
            {"events": [delta("x" * 1_100_000)]},
            {"raw": "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"},
            {"raw": "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 50\r\n\r\ndata: {}\n\n"},
            {"raw": "SSH-2.0\r\n\r\n"},
            {"raw": "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n"},
            {"raw": "x" * 70_000},
            {"raw": ""},
        ],
        2,
    ):
        assert failure(link, number, chat(script))[:2] == (RAISED, 500), script


def test_a_cancelled_request_ends_at_the_server(server):
    engine, link = server()
    link.ask(1, chat({"events": [delta("a"), 60, delta("b")]}), kind="text-generation")
    assert [link.read().kind for _ in range(2)] == [STREAM, CHUNK]
    link.cancel(1)
    last = link.read()
    assert (last.kind, last.flags) == (ERROR, CANCELLED)
    gone = {"gone": "/v1/chat/completions"}
    engine.await_true(lambda: asked(engine)[-1] == gone, "news of the closed connection at the server")
    link.ask(2, chat({"events": [60]}), kind="text-generation")
    engine.await_true(lambda: len(asked(engine)) == 4, "a request at the server")
    link.cancel(2)
    assert link.read().kind == ERROR
    engine.await_true(lambda: asked(engine)[-1] == gone and len(asked(engine)) == 5, "the same before its first event")


def test_a_stream_that_nobody_reads_is_not_received(server):
    """Credit of 256 KiB is used up: the server is not read any further, and its writes wait."""
    engine, link = server()
    script = {"events": [delta("x" * 100_000), delta(finish="stop")], "times": 2000}
    link.ask(1, chat(script), kind="text-generation")
    size = 0
    while size < 100_000:
        size += len(link.read().payload)
    held = int(Path(f"/proc/{engine.process.pid}/statm").read_text().split()[1]) * 4096
    assert held < 128 << 20, "most of the 200 MB are still at the server"
    while (got := link.read()).kind != END:
        size += len(got.payload)
        link.credit(1, len(got.payload) + 16)
    assert size >= 200_000_000


def test_embeddings_rerank_and_counts(server):
    engine, link = server()
    link.ask(1, {"texts": ["a", "b"], "dimensions": 2}, kind="embeddings")
    (got,) = link.gather(1)[1]
    head, rest = got.split()
    (length,) = struct.unpack_from("<I", rest)
    assert (got.kind, got.flags, head["media_type"]) == (RESPONSE, BYTES | HEAD, "application/vnd.omni.embeddings")
    usage = {"prompt_tokens": 3, "completion_tokens": 0, "cached_tokens": 0, "reasoning_tokens": 0}
    assert json.loads(rest[4 : 4 + length]) == {"count": 2, "dimensions": 2, "usage": usage}
    assert struct.unpack("<4f", rest[4 + length :]) == (0.0, 0.5, 1.0, 0.5)
    sent = {"model": "/served/by-its-own-name", "input": ["a", "b"], "encoding_format": "base64", "dimensions": 2}
    assert asked(engine)[-1]["body"] == sent
    got = link.answer(2, {"query": "q", "documents": ["a", "bb"], "top_n": 1}, kind="rerank")
    assert (got.kind, got.flags, got.json["scores"]) == (RESPONSE, JSON, [1.0, 2.0])
    assert link.answer(3, {"prompt": "four"}, kind="count-tokens").json == {"tokens": 4}
    assert link.answer(4, {"messages": [{"role": "user", "content": "x"}]}, kind="count-tokens").json["tokens"] > 4
    assert failure(link, 5, b"", kind="speech-to-text")[:2] == (HANDLER, 501)


def test_the_server_is_waited_for_and_ends_with_the_engine(server):
    engine, link = server({"kind": "openai", "command": ["env", "DOUBLE_LOADS=0.3", *SERVE["command"]]})
    child = child_of(engine)
    engine.tell({"type": "stop"})
    link.close()
    assert engine.wait() == 0
    assert not Path(f"/proc/{child}").exists() and "the server ended" not in engine.log()


@pytest.mark.parametrize(
    ("script", "code", "log"),
    [({"die": 3}, 3, "exit code 3"), ({"die": 0}, 1, "exit code 0"), ({"die": "SIGKILL"}, -signal.SIGKILL, "SIGKILL")],
)
def test_the_engine_ends_as_its_server_does(server, script, code, log):
    engine, link = server()
    link.ask(1, chat(script), kind="text-generation")
    assert engine.wait() == code
    assert f"the server ended: {'signal ' if code < 0 else ''}{log}" in engine.log()


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (["no-such-program", "{socket}"], 78, "the server cannot be started: no-such-program: No such file"),
        ([sys.executable, "-c", "raise SystemExit(5)", "{socket}"], 1, "ended before it was healthy: exit code 5"),
    ],
)
def test_a_server_that_does_not_start(start, command, code, message):
    engine = start(DOUBLE, engine={"kind": "openai", "command": command})
    heard = engine.hear()
    assert (heard["type"], heard["phase"]) == ("failed", "setup") and message in heard["message"]
    assert "Traceback" not in heard["message"]
    assert engine.wait() == code


def test_an_answer_that_is_no_stream_says_so(server):
    engine, link = server()
    assert failure(link, 1, chat({"status": 200, "body": {"choices": []}}))[:2] == (RAISED, 500)
    engine.await_log("has the content-type `application/json`, not `text/event-stream`")
    refused = failure(link, 2, chat({"status": 200, "body": {"error": {"message": "no", "code": 400}}}))
    assert refused == (HANDLER, 400, "no", None)


def test_the_health_check_asks_the_server(server):
    engine, link = server()
    engine.await_true(lambda: link.check(1) == "" and link.metrics, "a report of metrics, which may come at any time")
    child = child_of(engine)
    os.kill(child, signal.SIGSTOP)
    link.send(struct.pack("<IBBHQ", 0, 4, 1, 0, 2))
    assert link.quiet(0.3), "no answer while the server is stuck"
    os.kill(child, signal.SIGCONT)
    assert link.read().payload == b""


def test_metrics_of_the_server_are_reported(server):
    engine, link = server()
    engine.await_true(lambda: link.check(1) == "" and link.metrics, "a report of metrics")
    labels = {"engine": "0"}
    found = {(one["name"], one["kind"]): (dict(one["labels"]), one["value"]) for one in link.metrics[0]}
    assert found[("vllm_num_requests_running", "gauge")] == (labels, 2.0)
    assert found[("vllm_prefix_cache_hits", "counter")] == ({}, 41.0)
    assert found[("vllm_time_to_first_token_seconds_bucket", "gauge")] == ({"le": "+Inf"}, 3.0)
    assert found[("python_gc_objects", "counter")] == ({}, 7.0)
    assert len(link.metrics) == 1, "an idle server is not asked again"
    link = engine.attach()
    assert link.check(1) == "" and len(link.metrics) == 1, "the next scheduler has the last report"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("llamacpp:prompt_seconds_total 0.5", [("llamacpp_prompt_seconds_total", "gauge", [], 0.5)]),
        ("# TYPE a:b_total counter\na:b_total 1", [("a_b", "counter", [], 1.0)]),
        ("# TYPE a counter\na_total 1", [("a", "counter", [], 1.0)]),
        ('a{b="x\\"}\\n\\\\",c="1"} 1e3 1700000000', [("a", "gauge", [["b", 'x"}\n\\'], ["c", "1"]], 1000.0)]),
        ('a{model_name="m",model="m",instance="i"} 1', [("a", "gauge", [], 1.0)]),
        ('_5xx 1\n:5 2\n_ 3\na{_1="x"} 1\na{__="x"} 1', []),
        (f'a{{b="{"x" * 5000}"}} 1', []),
        ("a NaN\nb +Inf\nc x\nd\n{} 1\n# c\n\na_created 5\nnääme 1", []),
        (f'{"x" * 129} 1\na{{b="{"x" * 129}"}} 1', []),
        ("a{" + ",".join(f'l{at}="1"' for at in range(9)) + "} 1", []),
    ],
)
def test_lines_of_metrics(line, expected):
    found = metrics.series_of(line)
    assert [(one["name"], one["kind"], one["labels"], one["value"]) for one in found] == expected


def test_the_series_of_a_server_are_bounded():
    lines = [f'python_{at} 1\nvllm:{at}{{engine="{"x" * 100}"}} 1' for at in range(300)]
    found = metrics.series_of("\n".join(lines))
    assert 200 < len(found) <= 256 and all(str(one["name"]).startswith("vllm_") for one in found)
    few = metrics.series_of("python_a 1\nvllm:b 1")
    assert [one["name"] for one in few] == ["vllm_b", "python_a"]
    labels = ",".join(f'{chr(97 + at) * 120}="{"y" * 120}"' for at in range(8))
    wide = "\n".join(f"m{at}{{{labels}}} 1" for at in range(256))
    assert len(wire.metrics(metrics.series_of(wide))) <= 64 * 1024


def slept(tmp_path, monkeypatch, *commands, **environment):
    """Reports of a server's memory after commands of the worker: code, and bytes on the card meanwhile. And what the
    server was asked."""
    monkeypatch.setattr(sleep, "CONTROL", str(tmp_path / "control.sock"))
    monkeypatch.setattr(sleep, "ACCOUNT", str(tmp_path / "account"))
    monkeypatch.setattr(sleep, "_DRAINED_WITHIN", 0.2)
    (tmp_path / "model.py").write_text(DOUBLE)
    worker = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker.bind(sleep.CONTROL)
    worker.listen()
    worker.settimeout(10)
    server = Server(["{socket}"], str(tmp_path), None)
    command = [sys.executable, str(tmp_path / "model.py"), str(server.address)]
    account(tmp_path, 0)

    async def run():
        while await server.problem() is not None:
            await asyncio.sleep(0.02)
        await sleep.Sleeper(server).begin()
        connection, _ = worker.accept()
        connection.settimeout(10)
        packets = [connection.recv(72)]
        for number, code, on_card in commands:
            account(tmp_path, on_card)
            connection.send(struct.pack("<3Q", number, code, 0))
            packets.append(await asyncio.get_running_loop().run_in_executor(None, connection.recv, 72))
        return [struct.unpack("<9Q", packet) for packet in packets]

    process = subprocess.Popen(command, env={**os.environ, "DOUBLE_RUNNING": "0", **environment})
    server._process = process
    try:
        reports = asyncio.run(run())
    finally:
        process.kill()
        process.wait()
    lines = (tmp_path / "asked").read_text(encoding="utf-8").splitlines()
    return reports, [json.loads(line)["path"] for line in lines]


def account(tmp_path, device):
    """An accounting file: this process has device memory, and one that is gone."""
    slots = [struct.pack("<I20x3Q80x", os.getpid(), 7, 3, device), struct.pack("<I20x3Q80x", 2**22 + 1, 9, 9, 9)]
    assert all(len(slot) == 128 for slot in slots)
    (tmp_path / "account").write_bytes(bytes(4096) + b"".join(slots))


def test_a_server_sleeps_and_wakes_by_command(tmp_path, monkeypatch):
    commands = [(1, 3, 96), (2, 1, 96), (3, 1, 0), (4, 2, 0), (5, 2, 96)]
    reports, asked = slept(tmp_path, monkeypatch, *commands)
    hello, *done = reports
    assert hello[:2] == (1, 0) and hello[2] == os.getpid()
    assert [report[:3] for report in done] == [(2, number, os.getpid()) for number, _, _ in commands]
    assert [report[5:] for report in done] == [(held, held, 0, 0) for held in (100, 100, 4, 4, 100)]
    sleep_once = ["/sleep?level=1", "/is_sleeping"]
    wake_once = ["/wake_up", "/is_sleeping", "/v1/completions"]
    # Told again while something is on the card, it sleeps again; told to wake twice, it wakes once.
    assert asked == ["/is_sleeping", *sleep_once, *sleep_once, *wake_once]


@pytest.mark.parametrize(
    ("code", "environment"),
    [(1, {"DOUBLE_SLEEPS": "500"}), (1, {"DOUBLE_RUNNING": "1.0"})],
)
def test_a_server_that_does_not_go_to_sleep_is_reported(tmp_path, monkeypatch, code, environment):
    reports, asked = slept(tmp_path, monkeypatch, (1, code, 96), **environment)
    assert reports[1][2] == os.getpid() | 999 << 32
    assert ("/sleep?level=1" in asked) == ("DOUBLE_RUNNING" not in environment), "never under a request"
