#!/usr/bin/env python3
"""What clients notice of a scheduler that is replaced under load: failures, and latency around each takeover.

Usage (root): bench/upgrade.py [--rate 500] [--seconds 60] [--every 10] [--clients 16] [--fresh 0.2] [--streams 2]

Takes the programs of `make build` (or of the folder OMNI_BIN). An open load: every request has its moment, and its
latency counts from there, so that a client that had to wait does not hide what others would have seen. Most clients
keep their connections, a part opens a new one for each request, some read long streams. Every `--every` seconds a new
scheduler takes over with `omnictl upgrade`. Prints failures, p50 and p99 of quiet seconds and of the seconds around
takeovers, and whether the models' processes are the same.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import statistics
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from node import BIN, Node

ECHO = "def handle_request(request, context):\n    return request.body.json\n"
TOKENS = """\
import asyncio

async def handle_request(request, context):
    for number in range(100):
        yield str(number)
        await asyncio.sleep(0.05)
"""
CONCURRENT = "schema = 1\n[scaling]\nconcurrency = 8\n"
BODY = json.dumps({"text": "hi"})
HEADERS = {"content-type": "application/json"}


@dataclass
class Told:
    """What one client saw: when each request was due, in seconds since the start, and how long until its answer."""

    answers: list[tuple[float, float]] = field(default_factory=list)
    failures: list[tuple[float, str]] = field(default_factory=list)


def ask(connection: http.client.HTTPConnection, model: str, extra: dict[str, str]) -> bytes:
    connection.request("POST", f"/ai/run/{model}", BODY, HEADERS | extra)
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{answer.status}: {text[:200]!r}")
    return text


def client(node: Node, begun: float, due: list[float], fresh: bool, told: Told) -> None:
    """Asks at each of these moments, over one connection or over a new one each time."""
    with contextlib.ExitStack() as held:
        kept = held.enter_context(contextlib.closing(node.connect()))
        for at in due:
            time.sleep(max(0.0, begun + at - time.perf_counter()))
            try:
                if fresh:
                    with contextlib.closing(node.connect()) as connection:
                        ask(connection, "echo", {"connection": "close"})
                else:
                    ask(kept, "echo", {})
            except (OSError, http.client.HTTPException, RuntimeError) as error:
                told.failures.append((at, repr(error)))
                kept.close()
            else:
                told.answers.append((at, time.perf_counter() - begun - at))


def streams(node: Node, begun: float, seconds: float, told: Told) -> None:
    """Reads streams of five seconds, one after the other: each crosses takeovers."""
    while (at := time.perf_counter() - begun) < seconds:
        try:
            with contextlib.closing(node.connect()) as connection:
                if not ask(connection, "tokens", {}).endswith(b"data: [DONE]\n\n"):
                    raise RuntimeError("the stream was cut")
        except (OSError, http.client.HTTPException, RuntimeError) as error:
            told.failures.append((at, repr(error)))
        else:
            told.answers.append((at, time.perf_counter() - begun - at))


def percentile(times: list[float], percent: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * percent / 100))] * 1e3


def row(what: str, figure: str, target: str = "") -> None:
    print(f"{what:<44} {figure:>30}  {target}", flush=True)


def engines(node: Node) -> dict[str, list[int]]:
    return {model["name"]: [each["pid"] for each in model["instances"]] for model in node.ctl("list")["models"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=500, help="requests a second, all clients together")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--every", type=float, default=10, help="seconds between takeovers")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--fresh", type=float, default=0.2, help="the part of them that connects for each request")
    parser.add_argument("--streams", type=int, default=2)
    chosen = parser.parse_args()
    load = Path("/proc/loadavg").read_text().split()[0]
    print(f"{os.cpu_count()} CPUs, load {load}, programs of {BIN}")
    tokens = {"model.py": TOKENS, "omni.toml": CONCURRENT}
    with Node({"echo": {"model.py": ECHO}, "tokens": tokens}) as node:
        node.wake("echo", {"text": "hi"})
        node.wake("tokens", {"text": "hi"})
        before = engines(node)
        step = chosen.clients / chosen.rate
        count = int(chosen.seconds / step)
        begun = time.perf_counter() + 0.5
        told = [Told() for _ in range(chosen.clients)]
        streamed = [Told() for _ in range(chosen.streams)]
        threads = [
            threading.Thread(
                target=client,
                args=(
                    node,
                    begun,
                    [number / chosen.rate + turn * step for turn in range(count)],
                    number < chosen.clients * chosen.fresh,
                    told[number],
                ),
            )
            for number in range(chosen.clients)
        ]
        threads += [threading.Thread(target=streams, args=(node, begun, chosen.seconds, each)) for each in streamed]
        for thread in threads:
            thread.start()
        takeovers = []
        while (at := (len(takeovers) + 1) * chosen.every) < chosen.seconds:
            time.sleep(max(0.0, begun + at - time.perf_counter()))
            first = time.perf_counter() - begun
            node.upgrade()
            takeovers.append((first, time.perf_counter() - begun))
        for thread in threads:
            thread.join()
        after = engines(node)

        def near(at: float) -> bool:
            return any(first - 0.5 <= at <= last + 0.5 for first, last in takeovers)

        answers = [answer for each in told for answer in each.answers]
        failures = [failure for each in told + streamed for failure in each.failures]
        quiet = [seconds for at, seconds in answers if not near(at)]
        around = [seconds for at, seconds in answers if near(at)]
        row("takeovers", str(len(takeovers)))
        row("    omnictl upgrade, median", f"{statistics.median(b - a for a, b in takeovers) * 1e3:.0f} ms")
        row("requests answered", f"{len(answers)} of {count * chosen.clients}")
        row("streams of five seconds", str(sum(len(each.answers) for each in streamed)))
        row("failed", str(len(failures)), "0")
        row("p50, p99, max in quiet seconds", spread(quiet))
        row("p50, p99, max within 0.5 s of a takeover", spread(around))
        grown = percentile(around, 99) - percentile(quiet, 99)
        row("    p99 grows by", f"{grown:.0f} ms", "<= 100 ms")
        row("model processes", "the same" if before == after else f"{before}, then {after}", "the same")
        for at, failure in failures[:10]:
            print(f"    failed at {at:.2f} s: {failure}")


def spread(times: list[float]) -> str:
    return f"{percentile(times, 50):.1f}, {percentile(times, 99):.1f}, {max(times) * 1e3:.1f} ms"


if __name__ == "__main__":
    main()
