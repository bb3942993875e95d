#!/usr/bin/env python3
"""Cost of the chat API over the run API of the same node: processor time for a request, chunks per second, first chunk.

Usage: layer.py [--rounds N]     (as root, after `make build`)

The same text comes from a model of kind `custom` over /ai/run and from one of kind `text-generation` over
/v1/chat/completions, whose prompt the node renders with a chat template of 2 KiB. Once with handlers in 16 threads,
once with handlers that run one at a time. Rounds of both APIs are interleaved; printed are medians. Load by `wrk`
(Debian package): 16 connections for whole answers; streams are read by this program.
"""

from __future__ import annotations

import argparse
import json
import re
import selectors
import socket
import statistics
import subprocess
import tempfile
import time

from node import Node, processor
from report import machine, row, spread

CHUNKS, STREAMS = 200, 16
HANDLERS = {"handlers in 16 threads": "[scaling]\nconcurrency = 16\n", "one handler at a time": ""}
TEXT = "The quick brown fox jumps over the lazy dog. " * 6
PIECES = """
def pieces(count):
    for number in range(count):
        yield "token %d " % number
"""
CUSTOM = f"""
{PIECES}
def handle_request(request, context):
    body = request.body.json
    if body.get("stream"):
        return pieces(body["max_tokens"])
    return {TEXT!r}
"""
CHAT = f"""
from omni import Completion, TextGeneration
{PIECES}
def handle_request(request: TextGeneration, context):
    if request.sampling.max_tokens > 1:
        return pieces(request.sampling.max_tokens)
    return Completion({TEXT!r})
"""
# As long as those of common models: roles, tools, a loop over messages, conditions on the last one.
TEMPLATE = """{%- if messages[0]['role'] == 'system' %}
  {%- set system = messages[0]['content'] %}{% set rest = messages[1:] %}
{%- else %}{% set system = 'You are a helpful assistant.' %}{% set rest = messages %}{% endif %}
{%- if tools %}
  {{- '<|im_start|>system\\n' + system + '\\n\\n# Tools\\n\\n' }}
  {{- 'You may call one or more functions to assist with the query of the user, as they are described below.' }}
  {{- '\\n\\nYou are provided with the signatures of functions within <tools></tools> XML tags:\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}{{ '\\n</tools>' }}
  {{- '\\n\\nFor each call of a function, return a JSON object with the function name and its arguments' }}
  {{- ' within <tool_call></tool_call> XML tags:\\n<tool_call>\\n' }}
  {{- '{"name": <function-name>, "arguments": <object>}\\n</tool_call><|im_end|>\\n' }}

{%- else %}{{ '<|im_start|>system\\n' + system + '<|im_end|>\\n' }}{% endif %}
{%- for message in rest %}
  {%- if message.role == 'user' or message.role == 'system' %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
  {%- elif message.role == 'assistant' %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if message.content %}{{ message.content }}{% endif %}
    {%- for call in message.tool_calls or [] %}
      {%- set function = call.function %}
      {{- '\\n<tool_call>\\n{"name": "' + function.name + '", "arguments": ' }}{{ function.arguments | tojson }}
      {{- '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
  {%- elif message.role == 'tool' %}
    {%- if loop.first or rest[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
    {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
    {%- if loop.last or rest[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|im_start|>assistant\\n' }}
  {%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}
"""
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TEXT}]
BODIES = {
    "run": ("/ai/run/custom", {"prompt": TEXT}),
    "chat": ("/v1/chat/completions", {"model": "chat", "messages": MESSAGES}),
}


def processor_seconds(node: Node, pids: list[int]) -> float:
    """Processor time of the scheduler and the models' processes."""
    return sum(processor(pid) for pid in [node.pid, *pids])


def whole(node: Node, api: str, seconds: int) -> tuple[float, float]:
    """Microseconds of processor time for a request, and requests per second."""
    path, body = BODIES[api]
    pids = node.processes()
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        text = json.dumps(body | {"max_tokens": 1}).replace("'", "\\'").replace("\\n", "\\\\n")
        script.write(f"wrk.method = 'POST'\nwrk.headers['content-type'] = 'application/json'\nwrk.body = '{text}'\n")
        script.flush()
        url = f"http://{node.address[0]}:{node.address[1]}{path}"
        before = processor_seconds(node, pids)
        command = ["wrk", "-t1", "-c16", f"-d{seconds}s", "-s", script.name, url]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        spent = processor_seconds(node, pids) - before
    if "Non-2xx" in said:
        raise SystemExit(f"{api}: {said}")
    count = int(re.search(r"(\d+) requests in", said)[1])
    return spent / count * 1e6, count / seconds


def request(node: Node, api: str, chunks: int) -> bytes:
    """A request for a stream."""
    path, body = BODIES[api]
    text = json.dumps(body | {"stream": True, "max_tokens": chunks}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: {node.address[0]}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(text)}\r\n\r\n".encode() + text


def streams(node: Node, api: str) -> float:
    """Chunks per second of streams that begin together, as fast as they go."""
    selector = selectors.DefaultSelector()
    began, events = time.perf_counter(), 0
    for _ in range(STREAMS):
        connection = socket.create_connection(node.address)
        connection.sendall(request(node, api, CHUNKS))
        selector.register(connection, selectors.EVENT_READ, bytearray())
    while selector.get_map():
        for key, _ in selector.select(20):
            found = key.fileobj.recv(1 << 16)
            key.data.extend(found)
            if not found or b"data: [DONE]" in key.data[-64:]:
                selector.unregister(key.fileobj)
                key.fileobj.close()
                events += key.data.count(b"data: ") - 1
    if events < CHUNKS * STREAMS:
        raise SystemExit(f"{api}: {events} chunks of {CHUNKS * STREAMS}")
    return CHUNKS * STREAMS / (time.perf_counter() - began)


def first(node: Node, api: str, count: int) -> float:
    """Milliseconds until the first text of a stream, the median of streams one after the other."""
    times = []
    text = request(node, api, 2)
    for _ in range(count):
        with socket.create_connection(node.address) as connection:
            found = b""
            began = time.perf_counter()
            connection.sendall(text)
            while b"token" not in found:
                found += connection.recv(1 << 16)
            times.append((time.perf_counter() - began) * 1e3)
            while b"[DONE]" not in found:
                found += connection.recv(1 << 16)
    return statistics.median(times)


def compare(handlers: str, rounds: int) -> None:
    """Measures both APIs in turns with such handlers, and prints the ratios of the medians."""
    manifest = HANDLERS[handlers]
    models = {
        "custom": {"model.py": CUSTOM, "omni.toml": manifest},
        "chat": {
            "model.py": CHAT,
            "omni.toml": '[model]\nkind = "text-generation"\n' + manifest,
            "chat_template.jinja": TEMPLATE,
        },
    }
    found: dict[str, dict[str, list[float]]] = {api: {"cpu": [], "chunks": [], "first": []} for api in BODIES}
    with Node(models) as node:
        node.wake("custom", {"prompt": "x"})
        for api in BODIES:
            streams(node, api)
        for number in range(rounds):
            for api in sorted(BODIES, reverse=number % 2 == 1):
                whole(node, api, 1)
                found[api]["cpu"].append(whole(node, api, 4)[0])
                found[api]["chunks"].append(statistics.median(streams(node, api) for _ in range(5)))
                found[api]["first"].append(first(node, api, 100))
    run, chat = found["run"], found["chat"]
    print(f"\n{handlers}")
    for api, figures in found.items():
        row(f"{api}: processor time for a request", spread(figures["cpu"], ".1f", " us"))
        row(f"{api}: chunks per second, {STREAMS} streams", spread(figures["chunks"], ".0f"))
        row(f"{api}: first chunk", spread(figures["first"], ".2f", " ms"))
    cpu = statistics.median(chat["cpu"]) / statistics.median(run["cpu"])
    chunks = statistics.median(chat["chunks"]) / statistics.median(run["chunks"])
    later = statistics.median(chat["first"]) - statistics.median(run["first"])
    row("processor time, chat over run", f"{cpu:.2f}x", "<= 1.5x", cpu <= 1.5)
    row("chunks per second, chat over run", f"{chunks:.2f}x", ">= 0.7x", chunks >= 0.7)
    row("first chunk, chat after run", f"{later:+.2f} ms", "<= +0.3 ms", later <= 0.3)


def main() -> None:
    """Compares the APIs with each sort of handlers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    machine()
    for handlers in HANDLERS:
        compare(handlers, rounds)


if __name__ == "__main__":
    main()
