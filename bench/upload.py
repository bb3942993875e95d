#!/usr/bin/env python3
"""Cost of a large upload for the scheduler: its own processor time and memory, apart from the model's.

Usage (root): bench/upload.py [--mib 64] [--rounds 15]
              bench/upload.py --kept 16 [--mib 2] [--seconds 5]     uploads over as many kept connections at once

One client sends a body at once and reads the answer, again and again: to a model that reads the stream which the
scheduler passes on, and to one that is trusted and is handed the connection. The time is the kernel's for the
scheduler's threads, less that of an equally long pause. `cat` reads as much from a connection into nothing: the least
that a copying process would take for half of the way.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import threading
import time
from pathlib import Path

from load import request
from node import Node, status
from report import machine, row, spread

COUNTS = "def handle_request(request, context):\n    return sum(map(len, request.body.stream()))\n"
LARGE = '[limits]\nbody = "1GiB"\n'
TRUSTED = LARGE + "body-handover = true\n"
CONFIG = '[server]\nbody-handover = ["trusted"]\n'
# Processor time of the scheduler for 64 MiB, and what its memory may grow by.
GOAL_MS = 10.0
GOAL_MIB = 2.0


def processor_ms(pid: int) -> float:
    """Processor time of all threads of a process, in milliseconds."""
    return sum(int(each.read_text().split()[0]) for each in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e6


def upload(node: Node, model: str, body: bytes) -> float:
    """Sends a body; seconds to the end of the answer. Raises when the model has not counted all of it."""
    # No JSON, which would be collected.
    sent = request(node.address, model, body, "application/octet-stream", keeps=False)
    begun = time.perf_counter()
    with socket.create_connection(node.address, 60) as connection:
        connection.sendall(sent)
        answer = connection.makefile("rb").read()
    seconds = time.perf_counter() - begun
    if json.loads(answer.partition(b"\r\n\r\n")[2])["result"] != len(body):
        raise RuntimeError(answer.decode())
    return seconds


def copied_ms(body: bytes) -> float:
    """Milliseconds of processor time that `cat` takes to read a body from a connection into nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        served = listener.accept()[0]
    with client:
        with served:
            reader = subprocess.Popen(["cat"], stdin=served, stdout=subprocess.DEVNULL)
        client.sendall(body)
        client.shutdown(socket.SHUT_WR)
        _, reader.returncode, usage = os.wait4(reader.pid, 0)
    return (usage.ru_utime + usage.ru_stime) * 1000


def cost(node: Node, model: str, body: bytes) -> tuple[float, float]:
    """Milliseconds of the scheduler's time that one upload takes beyond a pause as long, and the upload's seconds."""
    before = processor_ms(node.pid)
    seconds = upload(node, model, body)
    # Work after the answer counts as well.
    time.sleep(0.05)
    taken = processor_ms(node.pid) - before
    time.sleep(seconds + 0.05)
    return taken - (processor_ms(node.pid) - before - taken), seconds


def uploads(node: Node, request: bytes, until: float, answered: list[int], opened: list[int]) -> None:
    """Sends the body again and again over one connection until a moment; opens another when the node has closed it."""
    while time.monotonic() < until:
        opened.append(1)
        with socket.create_connection(node.address) as client, client.makefile("rb") as answer:
            while time.monotonic() < until:
                client.sendall(request)
                if not (line := answer.readline()):
                    break
                status_code, closes, length = int(line.split()[1]), False, 0
                while (header := answer.readline().rstrip().lower()) and header:
                    closes |= header == b"connection: close"
                    if header.startswith(b"content-length:"):
                        length = int(header.split(b":")[1])
                answer.read(length)
                answered.append(status_code)
                if closes:
                    break


def kept(connections: int, mib: int, seconds: float) -> None:
    """Uploads over kept connections: requests and connections a second, and the scheduler's time for each request."""
    body = os.urandom(1 << 20) * mib
    manifest = LARGE + f"[scaling]\nconcurrency = {connections}\n"
    with Node({"streamed": {"model.py": COUNTS, "omni.toml": manifest}}) as node:
        node.ctl("start", "streamed", "--wait")
        head = "POST /ai/run/streamed HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        head += f"content-type: application/octet-stream\r\ncontent-length: {len(body)}\r\n\r\n"
        answered: list[int] = []
        opened: list[int] = []
        begun, before = time.monotonic(), processor_ms(node.pid)
        arguments = (node, head.encode() + body, begun + seconds, answered, opened)
        threads = [threading.Thread(target=uploads, args=arguments) for _ in range(connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took, cpu = time.monotonic() - begun, processor_ms(node.pid) - before
    well = answered.count(200)
    row(f"{mib} MiB over {connections} connections", f"{well / took:.0f} requests/s, {len(answered) - well} failed")
    row("scheduler's time for each", f"{cpu / max(well, 1):.2f} ms")
    row("connections opened", f"{len(opened)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--kept", type=int)
    parser.add_argument("--seconds", type=float, default=5)
    asked = parser.parse_args()
    machine()
    if asked.kept:
        kept(asked.kept, asked.mib or 2, asked.seconds)
        return
    asked.mib = asked.mib or 64
    body = os.urandom(1 << 20) * asked.mib
    manifests = {"streamed": LARGE, "trusted": TRUSTED}
    models = {name: {"model.py": COUNTS, "omni.toml": manifest} for name, manifest in manifests.items()}
    with Node(models, config=CONFIG) as node:
        for model in models:
            node.ctl("start", model, "--wait")
            upload(node, model, body)
        resident = status(node.pid, "VmRSS")
        reads = [copied_ms(body) for _ in range(asked.rounds)]
        found: dict[str, list[tuple[float, float]]] = {model: [] for model in models}
        for _ in range(asked.rounds):
            for model, costs in found.items():
                costs.append(cost(node, model, body))
        grown = status(node.pid, "VmRSS") - resident
    scale = 64 / asked.mib
    row("cat: time for 64 MiB", spread([taken * scale for taken in reads], ".1f", " ms"))
    for model, costs in found.items():
        times = [taken * scale for taken, _ in costs]
        reached = statistics.median(times) <= GOAL_MS
        row(f"{model}: scheduler's time for 64 MiB", spread(times, ".1f", " ms"), f"at most {GOAL_MS:.0f} ms", reached)
        row(f"{model}: throughput", spread([asked.mib / seconds for _, seconds in costs], ".0f", " MiB/s"))
    row("scheduler's memory grows by", f"{grown:.1f} MiB", f"at most {GOAL_MIB:.0f} MiB", grown <= GOAL_MIB)


if __name__ == "__main__":
    main()
