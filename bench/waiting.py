#!/usr/bin/env python3
"""Memory of requests for generated text that wait: what the node counts, beside what its scheduler grows by.

Usage: waiting.py     (as root, after `make build`)

A model with one handler at a time is kept busy, and requests of seven shapes are sent that wait behind it. The first
figure is the growth of the bytes that `omnictl status` shows, the second that of the scheduler's resident memory. What
is held and not counted would be memory that clients can take beyond `buffered-bytes`.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from typing import Any

from node import Node, status
from report import machine

MIB = 1 << 20
MODEL = """
import time
from omni import TextGeneration

def handle_request(request: TextGeneration, context):
    if request.sampling.max_tokens == 1:
        return "ok"
    return endless()

def endless():
    while True:
        yield "x"
        time.sleep(0.05)
"""
MANIFEST = """[model]
kind = "text-generation"
[chat]
render = "model"
tool-parser = "hermes"
[generation]
honours = ["max-tokens"]
[scaling]
queue = 20000
"""
SETTLED = 4.0  # seconds for all requests of a shape to arrive and to be prepared


def chat(text: str, count: int = 1, **more: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": text}] * count, **more}


def schema(**members: Any) -> dict[str, Any]:
    schema = {"type": "object", **members}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}


def tool(count: int) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {f"p{n}": {} for n in range(count)}}
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


PATTERNS = {f"p{n}": {"type": "string", "pattern": "^[a-z]{1,200}$"} for n in range(10)}
MANY = ["x"] * 128
SHAPES = {
    "26 conversations of 4 MiB": (26, chat("x" * 4 * MIB)),
    "100 of 16,000 messages": (100, chat("x", 16_000)),
    "100 with a tool of 45,000 parameters": (100, chat("x", tools=[tool(45_000)])),
    "60 with ten patterns": (60, chat("x", **schema(properties=PATTERNS))),
    "23 of 128 prompts and a schema of 244 KiB": (
        23,
        ("/v1/completions", {"prompt": MANY, **schema(description="d" * 250_000)}),
    ),
    "100 of 128 prompts and 16 stop strings": (100, ("/v1/completions", {"prompt": MANY, "stop": ["y" * 1000] * 16})),
    "26 responses of 4 MiB": (26, ("/v1/responses", {"instructions": "y" * 2 * MIB, "input": "x" * 2 * MIB})),
}


def held(node: Node) -> float:
    """MiB that the node counts."""
    return float(node.ctl("status")["buffered_bytes"]) / MIB


def send(node: Node, path: str, body: dict[str, Any]) -> socket.socket:
    content = json.dumps({"model": "text", **body}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    connection = socket.create_connection(node.address)
    connection.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
    return connection


def is_answered(connection: socket.socket) -> bool:
    connection.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        return bool(connection.recv(1))
    return False


def measure(name: str, count: int, path: str, body: dict[str, Any]) -> None:
    with Node({"text": {"model.py": MODEL, "omni.toml": MANIFEST}}) as node:
        node.wake("text", {"prompt": "x", "max_tokens": 1})
        busy = send(node, "/v1/completions", {"prompt": "x", "max_tokens": 1 << 30, "stream": True})
        busy.recv(1)
        before, counted = status(node.pid, "VmRSS"), held(node)
        connections = [send(node, path, body) for _ in range(count)]
        time.sleep(SETTLED)
        refused = sum(map(is_answered, connections))
        counted, grown = held(node) - counted, status(node.pid, "VmRSS") - before
        print(f"{name:<44} {count - refused:>3} wait  {counted:>6.1f} MiB counted  {grown:>6.1f} MiB grown", flush=True)
        for connection in [busy, *connections]:
            connection.close()


def main() -> None:
    machine()
    for name, (count, (path, body)) in SHAPES.items():
        measure(name, count, path, body)


if __name__ == "__main__":
    main()
