#!/usr/bin/env python3
"""Interactive requests beside a running batch: their times without it and with it, and what the batch gets done.

Usage: jobs.py [--seconds S] [--items N]     (as root, after `make build`)

A model that serves four requests at a time, each of which takes 50 ms (it sleeps). One client sends a request at random
times, five a second on average, first alone, then while a batch waits, whose items take the same. Then the client
leaves, and the batch has the model for itself after a second.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import statistics
import time
from typing import Any

from node import Node, post, until
from report import machine, row

MODEL = """
import asyncio
from omni import TextGeneration

async def handle_request(request: TextGeneration, context):
    await asyncio.sleep(0.05)
    yield "answer"
"""
MANIFEST = """[model]
kind = "text-generation"
[chat]
render = "model"
[scaling]
concurrency = 4
min-instances = 1
"""
TASK = {"messages": [{"role": "user", "content": "question"}]}
MEAN = 0.2  # seconds between two requests


def visit(node: Node, seconds: float) -> list[float]:
    """Times of requests at random moments, in milliseconds."""
    times = []
    with contextlib.closing(node.connect()) as connection:
        post(connection, "chat", TASK)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(random.expovariate(1 / MEAN))
            begun = time.perf_counter()
            if post(connection, "chat", TASK) != 200:
                raise SystemExit("a request failed")
            times.append((time.perf_counter() - begun) * 1000)
    return times


def call(connection: http.client.HTTPConnection, method: str, path: str, media: str = "", body: str = "") -> Any:
    connection.request(method, path, body, {"content-type": media} if media else {})
    answer = connection.getresponse()
    said = json.loads(answer.read())
    if answer.status != 200:
        raise SystemExit(f"{method} {path}: {answer.status} {said}")
    return said


def begin(node: Node, items: int) -> str:
    """Begins a batch, and returns its identifier."""
    url = "/v1/chat/completions"
    body = {"model": "chat", **TASK}
    lines = [json.dumps({"custom_id": str(n), "method": "POST", "url": url, "body": body}) for n in range(items)]
    part = "--b\r\nContent-Disposition: form-data; name="
    form = f'{part}"purpose"\r\n\r\nbatch\r\n{part}"file"; filename="in"\r\n\r\n' + "\n".join(lines) + "\r\n--b--\r\n"
    with contextlib.closing(node.connect()) as connection:
        file = call(connection, "POST", "/v1/files", "multipart/form-data; boundary=b", form)
        wanted = {"input_file_id": file["id"], "endpoint": url, "completion_window": "24h"}
        return call(connection, "POST", "/v1/batches", "application/json", json.dumps(wanted))["id"]


def completed(node: Node, batch: str) -> int:
    with contextlib.closing(node.connect()) as connection:
        return call(connection, "GET", f"/v1/batches/{batch}")["request_counts"]["completed"]


def shown(times: list[float]) -> str:
    cuts = statistics.quantiles(times, n=100)
    return f"{cuts[49]:.1f} / {cuts[98]:.1f} ms of {len(times)}"


def main() -> None:
    arguments = argparse.ArgumentParser(description="Interactive requests beside a running batch.")
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--items", type=int, default=20_000)
    options = arguments.parse_args()
    machine()
    with Node({"chat": {"model.py": MODEL, "omni.toml": MANIFEST}}, config='[jobs]\nidle = "1s"\n') as node:
        node.wake("chat", TASK)
        row("alone: median / 99th percentile", shown(visit(node, options.seconds)))
        batch = begin(node, options.items)
        until("the first results", lambda: completed(node, batch))
        before, begun = completed(node, batch), time.monotonic()
        row("beside a batch: median / 99th percentile", shown(visit(node, options.seconds)))
        rate = (completed(node, batch) - before) / (time.monotonic() - begun)
        row("items of the batch meanwhile", f"{rate:.1f} per second")
        time.sleep(2)
        before, begun = completed(node, batch), time.monotonic()
        time.sleep(options.seconds / 4)
        rate = (completed(node, batch) - before) / (time.monotonic() - begun)
        row("items of the batch alone, of 80", f"{rate:.1f} per second")


if __name__ == "__main__":
    main()
