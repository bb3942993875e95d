"""`python -m omni run`: generated text, embeddings and batches over `/ai/run`."""

from __future__ import annotations

import json

import pytest
from local import ask, serving

CHAT = """
from omni import *
{how} handle_request(request: TextGeneration, context):
    yield Reasoning("because")
    yield request.prompt or request.messages[0]["content"]
    yield "ä".encode()[:1]
    yield "ä".encode()[1:]
    yield Token("!", 7)
    yield ToolCall("f", {{"a": request.sampling.top_k}})
    if request.prompt == "raise":
        raise ValueError("secret")
    yield Finish("stop", Usage(3, 4))
"""


@pytest.mark.parametrize("how", ["def", "async def"])
def test_generated_text(tmp_path, how):
    with serving(tmp_path, CHAT.format(how=how)) as server:
        status, _, body = ask(server, {"prompt": "moo", "top_k": 5})
        usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
        calls = [{"name": "f", "arguments": {"a": 5}}]
        assert status == 200
        assert json.loads(body)["result"] == {"response": "mooä!", "tool_calls": calls, "usage": usage}
        status, kind, body = ask(server, {"messages": [{"role": "user", "content": "hi"}], "stream": True})
        assert (status, kind) == (200, "text/event-stream")
        events = [line[6:] for line in body.decode().split("\n\n") if line]
        assert events[-1] == "[DONE]"
        calls[0]["arguments"]["a"] = None
        assert [json.loads(event) for event in events[:-1]] == [
            {"response": "hi"},
            {"response": "ä"},
            {"response": "!"},
            {"response": "", "tool_calls": calls, "usage": usage},
        ]
        status, _, body = ask(server, {"prompt": 5})
        assert (status, "`prompt` is text" in body.decode()) == (400, True)
        assert ask(server, {"prompt": "raise"})[0] == 500
        status, _, body = ask(server, {"prompt": "raise", "stream": True})
        assert (status, b'data: {"error"' in body, b"[DONE]" in body, b"secret" in body) == (200, True, False, False)


@pytest.mark.parametrize("count", [1, 100])
def test_embeddings(tmp_path, count):
    code = "from omni import *\ndef handle_request(request: Embeddings, c): return [[1, 0.5] * 400] * len(request)\n"
    with serving(tmp_path, code) as server:
        status, _, body = ask(server, {"text": ["a"] * count})
        result = json.loads(body)["result"]
        assert (status, result["shape"], len(result["data"])) == (200, [count, 800], count)
        assert result["data"][0][:2] == [1.0, 0.5]


def test_a_handler_of_batches_gets_batches_of_one(tmp_path):
    code = "def handle_batch(requests, context): return [len(requests)] * requests[0].body.json\n"
    with serving(tmp_path, code) as server:
        assert json.loads(ask(server, 1)[2])["result"] == 1
        assert ask(server, 2)[0] == 500
