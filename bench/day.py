#!/usr/bin/env python3
"""A day in three minutes: twenty models whose load comes and goes, on nodes that keep different numbers of them.

Usage (root): bench/day.py [--seconds 180] [--models 20] [--peak 30] [--seed 1]

One seeded trace, the same for all three set-ups: requests come by chance, their rate follows the hours of a day, the
models' shares follow Zipf's law, and each has its own busy hours. "as needed" is a node with room for half of the
models that stops idle ones; "all always on" has room for all and never stops one; "one at a time" has room for one. A
start takes an import and a setup that loads the model's data. A latency counts from the moment at which the request was
due.
"""

from __future__ import annotations

import argparse
import bisect
import collections
import itertools
import json
import math
import random
import statistics
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from load import Answer, Offer, Plan, failed, failures, milliseconds
from node import Node
from report import machine, row

MODEL = """
import time
def setup(context):
    global held
    held = bytearray(range(256)) * (32 << 12)
    time.sleep(0.1)
def handle_request(request, context):
    time.sleep(0.01)
    return len(held)
"""
LIMIT_MIB = 128
# A day's ten minutes, when a day is three minutes long; what a node waits before it stops an idle model.
IDLE_OF_A_DAY = 1 / 144
# At its quietest hour a model has this part of its busiest.
NIGHT = 0.05
# Between two looks at the memory held, in seconds.
LOOK = 0.25


@dataclass(frozen=True)
class SetUp:
    """A way to run the models: for how many there is room, and whether they stay."""

    name: str
    room: int
    stays: bool


class Start(NamedTuple):
    """A model's start, from its first log line to ready; moments of the plan."""

    model: str
    begin: float
    end: float


@dataclass
class Day:
    """Results of a set-up."""

    answers: list[Answer]
    starts: list[Start]
    held: list[float]


def trace(models: list[str], seconds: float, peak: float, seed: int) -> Plan:
    """A day's requests: Poisson arrivals, thinned to the rate of the hour and of the model."""
    chance = random.Random(seed)
    shares = list(itertools.accumulate(1 / rank for rank in range(1, len(models) + 1)))
    busy = [chance.uniform(0.4, 0.7) for _ in models]
    plan: Plan = []
    at = 0.0
    while (at := at + chance.expovariate(peak)) < seconds:
        number = bisect.bisect(shares, chance.random() * shares[-1])
        hour = (1 + math.cos(2 * math.pi * (at / seconds - busy[number]))) / 2
        if chance.random() < NIGHT + (1 - NIGHT) * hour:
            plan.append((at, models[number]))
    return plan


def live(setup: SetUp, models: list[str], plan: Plan, seconds: float) -> Day:
    """Runs the trace on a separate node."""
    stays = f'min-instances = {int(setup.stays)}\nidle-timeout = "{seconds * IDLE_OF_A_DAY * 1e3:.0f}ms"\n'
    manifest = f'[resources]\nmemory = "{LIMIT_MIB}MiB"\ncpus = 1.0\n[scaling]\n{stays}'
    files = {"model.py": MODEL, "omni.toml": manifest}
    config = f'[capacity]\nmemory = "{LIMIT_MIB * setup.room}MiB"\n'
    with Node({model: files for model in models}, config=config) as node:
        # The first start of a node's life takes longer, and is not counted.
        node.ctl("start", models[0], "--wait")
        if setup.stays:
            for model in models:
                node.ctl("wait", model, "--for", "ready")
        else:
            node.await_stop(models[0])
        offer = Offer(node.address, plan, dict.fromkeys(models, b"null"))
        held = []
        for look in range(int(seconds / LOOK)):
            offer.wait_until(look * LOOK)
            held.append(charged(node.folder.name) / (1 << 20))
        return Day(offer.answers(), starts(node.log(), offer.began), held)


def charged(group: str) -> int:
    """Memory of all models of a node together, in bytes, as the kernel charges it."""
    for file in ("memory/{}/memory.usage_in_bytes", "{}/memory.current"):
        path = Path("/sys/fs/cgroup", file.format(group))
        if path.exists():
            return int(path.read_text())
    return 0


def starts(log: str, began: float) -> list[Start]:
    """All starts in the node's log, except those before the plan."""
    begun: dict[str, float] = {}
    found = []
    for line in log.splitlines():
        mark = json.loads(line) if line.startswith("{") else {}
        if mark.get("message") != "state":
            continue
        model = mark["model"]
        at = datetime.fromisoformat(mark["timestamp"].replace("Z", "+00:00")).timestamp() - began
        if mark["to"] in ("preparing", "starting"):
            begun.setdefault(model, at)
        elif model in begun and mark["to"] == "ready" and at > 0:
            found.append(Start(model, begun.pop(model), at))
        else:
            begun.pop(model, None)
    return found


def waited(day: Day) -> list[Answer]:
    """The answers that waited for a start."""
    of = collections.defaultdict(list)
    for start in day.starts:
        of[start.model].append(start)
    return [
        answer
        for answer in day.answers
        if any(start.begin < answer.due + answer.seconds and answer.due < start.end for start in of[answer.model])
    ]


def show(setup: SetUp, day: Day) -> None:
    """Prints a set-up's part of the table."""
    row(f"{setup.name}: requests failed", failures(day.answers), *goal(setup, day))
    met = waited(day)
    row("    starts, and requests that waited for one", f"{len(day.starts)}, {len(met)}")
    for what, answers in [("requests that waited", met), ("all requests", day.answers)]:
        figures = ", ".join(f"{milliseconds(answers, part):.0f}" for part in (0.5, 0.99, 1)) if answers else "none"
        row(f"    {what}: p50, p99, longest, ms", figures)
    row("    memory charged to models, mean and most, MiB", f"{statistics.mean(day.held):.0f}, {max(day.held):.0f}")


def goal(setup: SetUp, day: Day) -> tuple[str, bool | None]:
    """Only the set-up that a node is for has one."""
    return ("0", not failed(day.answers)) if setup.name == "as needed" else ("", None)


def main() -> None:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180, help="length of the day")
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--peak", type=float, default=30, help="requests a second, were all models at their busiest")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    machine()
    models = [f"model-{number:02}" for number in range(chosen.models)]
    plan = trace(models, chosen.seconds, chosen.peak, chosen.seed)
    asked = collections.Counter(model for _, model in plan).most_common()
    print(f"{len(plan)} requests for {len(asked)} models, {asked[0][1]} for the first, {asked[-1][1]} for the last")
    setups = [
        SetUp("as needed", chosen.models // 2, False),
        SetUp("all always on", chosen.models, True),
        SetUp("one at a time", 1, False),
    ]
    for setup in setups:
        show(setup, live(setup, models, plan, chosen.seconds))


if __name__ == "__main__":
    main()
