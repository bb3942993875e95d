#!/usr/bin/env python3
"""Effect of an abusive model on its neighbour: each abuse alone, beside quiet times of the same load.

Usage (root): bench/abuse.py [--rounds 3] [--seconds 8] [--rate 100] [--only NAME ...]

The neighbour computes for two milliseconds a request and gets requests at a fixed rate from a separate process; a
latency counts from the moment at which the request was due. Every abusive model has limits in its manifest. A round is,
for each abuse, a quiet time and one under abuse, one after the other; the result is the ratio of the two p99, its
median over the rounds. The work of the abuse is printed beside it, to reveal one that did nothing.

A control shows the machine's own effect: busy processes of the kernel's idle class, one for each processor and none of
the node's, which are to run only when no other process does. Where processors are few and the kernel's ticks coarse,
the neighbour feels even these, and more so an abuse that computes.

With `perf`, the ratio is printed a second time, without the requests that met a program outside (`outside.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import outside
from load import Answer, Offer, between, failed, failures, milliseconds, steady
from node import Node
from report import machine, row, spread

GOAL = 1.2
NEIGHBOUR = """
import hashlib, time
BLOCK = bytes(1 << 16)
def handle_request(request, context):
    until = time.thread_time() + 0.002
    while time.thread_time() < until:
        hashlib.sha256(BLOCK).digest()
    return None
"""
MANIFEST = """
[resources]
memory = "128MiB"
cpus = 1.0
pids = 96
[limits]
cache = "16MiB"
tmp = "16MiB"
[timeouts]
request = "30s"
cancel-grace = "1s"
[env]
ABUSE = "{name}"
"""
# Abuse by dying: the node's back-off limits how often. The other abuses are started again at once where they end.
DEADLY = "oom"
# At the beginning of either time, which is not counted: the abuse takes hold, or lets go.
SETTLE = 1.0
# Requests at a time to a model that reads none, and the bytes of each.
UNREAD, UNREAD_BYTES = 4, 4 << 20


@dataclass
class Abuse:
    """An abuse, and its results: ratios to the quiet time beside, the same `undisturbed` by programs outside and
    how many requests that leaves out, all answers, what the model says it did.
    """

    name: str
    what: str
    ratios: list[float] = field(default_factory=list)
    tails: list[float] = field(default_factory=list)
    undisturbed: list[float] = field(default_factory=list)
    left_out: int = 0
    answers: list[Answer] = field(default_factory=list)
    did: list[str] = field(default_factory=list)


CONTROL = "control"
ABUSES = [
    (CONTROL, "control: busy processes of the idle class"),
    ("threads", "busy loops in 64 threads"),
    ("memory", "memory at its limit, reclaiming"),
    ("oom", "memory past its limit, again and again"),
    ("forks", "fork bomb"),
    ("descriptors", "all descriptors"),
    ("disk", "disk and inodes full, again and again"),
    ("log", "100 MB/s of log"),
    ("unread", "never reads its socket"),
]


def abuse(node: Node, name: str, seconds: float) -> str:
    """Has the model do it for that long; what it says that it did, or how often it died of it."""
    end = time.monotonic() + seconds
    restarts = node.ctl("status", name)["restarts"]
    said: list[str] = []

    def again() -> None:
        body = {"seconds": 0, "pad": "x" * UNREAD_BYTES} if name == "unread" else {"seconds": 0}
        while (left := end - time.monotonic()) > 0.1:
            with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(node.connect()) as asked:
                text = json.dumps({**body, "seconds": left})
                limit = {"x-omni-timeout-ms": str(int(left * 1000) + 500), "content-type": "application/json"}
                asked.request("POST", f"/ai/run/{name}", text, limit)
                answer = asked.getresponse()
                found = answer.read()
                if answer.status == 200:
                    said.append(json.loads(found)["result"])
                elif answer.status in (429, 503):
                    if name != DEADLY:
                        node.ctl("start", name)  # sooner than its back-off would start it
                    time.sleep(0.2)

    threads = [threading.Thread(target=again) for _ in range(UNREAD if name == "unread" else 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    died = node.ctl("status", name)["restarts"] - restarts
    return "; ".join(said[-1:] + ([f"died {died} times"] if died else []))


def burn(seconds: float) -> str:
    """Has as many processes as there are processors compute in the idle class."""
    busy = "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"
    processes = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(os.cpu_count() or 1)]
    time.sleep(seconds)
    for process in processes:
        process.kill()
        process.wait()
    return f"{len(processes)} processes outside the node"


def measure(node: Node, one: Abuse, seconds: float, rate: float, strangers: set[int]) -> None:
    """A quiet time and an abused one."""
    if one.name != CONTROL:
        node.ctl("start", one.name, "--wait")
    record = outside.Record(strangers) if outside.available() else None
    offer = Offer(node.address, steady("neighbour", rate, 2 * (SETTLE + seconds)), {"neighbour": b"null"})
    offer.wait_until(SETTLE + seconds)
    one.did.append(burn(SETTLE + seconds) if one.name == CONTROL else abuse(node, one.name, SETTLE + seconds))
    answers = offer.answers()
    one.answers += answers
    times = [between(answers, begin + SETTLE, begin + SETTLE + seconds) for begin in (0, SETTLE + seconds)]
    one.ratios.append(to_quiet(times))
    one.tails.append(milliseconds(times[1], 0.99))
    if record is not None:
        zero = offer.began + time.monotonic() - time.time()
        turns = record.turns()
        alone = [[a for a in part if not outside.met(zero + a.due, a.seconds, turns)] for part in times]
        one.left_out += sum(map(len, times)) - sum(map(len, alone))
        one.undisturbed.append(to_quiet(alone))
    tell(one, times)


def to_quiet(times: list[list[Answer]]) -> float:
    """The p99 of the abused time to that of the quiet one."""
    quiet, abused = (milliseconds(part, 0.99) for part in times)
    return abused / quiet


def tell(one: Abuse, times: list[list[Answer]]) -> None:
    """Prints a line of progress."""
    figures = " ".join(f"{milliseconds(part, q):.2f}" for part in times for q in (0.5, 0.99))
    print(f"    {one.name}: p50 and p99 quiet, then abused, ms: {figures}; {one.did[-1]}", flush=True)


def main() -> None:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8, help="of each quiet and each abused time")
    parser.add_argument("--rate", type=float, default=100, help="requests a second to the neighbour")
    parser.add_argument("--only", nargs="+", choices=[name for name, _ in ABUSES])
    chosen = parser.parse_args()
    machine()
    strangers = outside.strangers()  # before anything is started
    abuses = [Abuse(*one) for one in ABUSES if not chosen.only or one[0] in chosen.only]
    source = (Path(__file__).parent / "abusive_model.py").read_text()
    names = [one.name for one in abuses if one.name != CONTROL]
    models = {name: {"model.py": source, "omni.toml": MANIFEST.format(name=name)} for name in names}
    with Node({**models, "neighbour": {"model.py": NEIGHBOUR}}) as node:
        for model in ["neighbour", *models]:
            node.wake(model, {"seconds": 0})
        for _ in range(chosen.rounds):
            for one in abuses:
                measure(node, one, chosen.seconds, chosen.rate, strangers)
    print(f"neighbour at {chosen.rate:.0f} requests/s, {chosen.rounds} rounds of {chosen.seconds:.0f} s, medians")
    for one in abuses:
        figure = f"{spread(one.ratios, unit='x')}, {statistics.median(one.tails):.1f} ms"
        if one.name == CONTROL:
            row(f"{one.what}: p99 to quiet", figure)
            continue
        row(f"{one.what}: p99 to quiet", figure, f"<= {GOAL}x", statistics.median(one.ratios) <= GOAL)
        if one.undisturbed:
            figure = f"{spread(one.undisturbed, unit='x')}, {one.left_out:,} left out"
            reached = statistics.median(one.undisturbed) <= GOAL
            row("    without those that met a program outside", figure, f"<= {GOAL}x", reached)
        row("    requests of the neighbour that failed", failures(one.answers), "0", not failed(one.answers))


if __name__ == "__main__":
    main()
