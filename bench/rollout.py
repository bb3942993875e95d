#!/usr/bin/env python3
"""A new version every few seconds under a steady load: the cost of the changes, and the effect of bad ones.

Usage (root): bench/rollout.py [--seconds 120] [--rate 500] [--every 5]

Every change is published by rename, as an author would. Each fifth one is bad, in another way each time; a request in
flight takes a while, so that every change meets some. Requests are offered at a fixed rate by a separate process, and a
latency counts from the moment at which the request was due.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from dataclasses import dataclass

from load import Answer, Offer, between, failed, failures, milliseconds, steady
from node import Node
from report import machine, row, spread

MODEL = """
import asyncio, os, time
NUMBER = {number}
{breaks_import}
def setup(context):
    {breaks_setup}
async def handle_request(request, context):
    await asyncio.sleep(0.005)
    return NUMBER
"""
MANIFEST = '[scaling]\nmin-instances = 1\nconcurrency = 64\nqueue = 1000\n[timeouts]\nstartup = "3s"\n'
# In which ways a version is bad, and where that breaks it.
BAD = [
    ("raises at its import", "breaks_import", "raise ImportError('a bad version')"),
    ("raises in its setup", "breaks_setup", "raise ValueError('a bad version')"),
    ("is never ready", "breaks_setup", "time.sleep(3600)"),
    ("ends its process", "breaks_setup", "os._exit(7)"),
]
BAD_EACH = 5
# Time after a change during which its costs are counted: start beside the old one, switch, drain, end.
CHANGE = 2.5


@dataclass
class Change:
    """A change of the model's directory; `at` is of the plan."""

    at: float
    bad: str | None
    version: str


def source(number: int, where: str = "breaks_setup", breaks: str = "pass") -> str:
    """The model that answers with its number."""
    return MODEL.format(**{"number": number, "breaks_import": "", "breaks_setup": "pass", where: breaks})


def change(node: Node, offer: Offer, seconds: float, every: float) -> list[Change]:
    """Publishes versions until shortly before the end of the load."""
    changes = []
    bad = itertools.cycle(BAD)
    for number in range(1, int(seconds / every)):
        offer.wait_until(number * every)
        at = offer.since()
        kind, *how = next(bad) if number % BAD_EACH == 0 else (None,)
        node.publish("model", "model.py", source(number, *how))
        # When the costs have been counted, so that asking adds nothing to them.
        offer.wait_until(at + min(CHANGE, every) * 0.98)
        changes.append(Change(at, kind, node.ctl("status", "model")["directory"]["version"]))
    return changes


def show(answers: list[Answer], changes: list[Change], first: str, seconds: float) -> None:
    """The table."""
    short = {answer.version for answer in answers if answer.version}

    def served(version: str) -> bool:
        return any(version.startswith(one) for one in short)

    good = [first] + [change.version for change in changes if not change.bad]
    bad = [change for change in changes if change.bad]
    row("requests failed", failures(answers), "0", failed(answers) == 0)
    row("versions that served", f"{sum(map(served, good))} of {len(good)}", "all", all(map(served, good)))
    for one in bad:
        row(f"bad version that {one.bad}, served", str(int(served(one.version))), "0", not served(one.version))
    strange = [one for one in short if not any(version.startswith(one) for version in good)]
    row("versions that nobody published, served", str(len(strange)), "0", not strange)

    begun = [0.0, *(change.at for change in changes)]
    around = [between(answers, change.at, change.at + CHANGE) for change in changes if not change.bad]
    tried = [between(answers, change.at, change.at + CHANGE) for change in bad]
    ends = [*begun[1:], seconds]
    quiet = [between(answers, at + CHANGE, end) for at, end in zip(begun, ends, strict=True) if end - at > CHANGE * 1.2]
    for what, windows in [("quiet", quiet), ("a good change", around), ("a bad change", tried)]:
        if windows:
            medians, tails = ([milliseconds(part, q) for part in windows] for q in (0.5, 0.99))
            most = max(milliseconds(part, 1) for part in windows)
            row(f"{what}: p50", spread(medians, unit=" ms"))
            row(f"{what}: p99", spread(tails, unit=" ms"))
            row(f"{what}: worst request", f"{most:.1f} ms")
    first_answers = [
        min(answer.due for answer in answers if answer.version and one.version.startswith(answer.version)) - one.at
        for one in changes
        if not one.bad and served(one.version)
    ]
    if first_answers:
        row("publish to the new version's first answer", spread(first_answers, unit=" s"))
        row("    median", f"{statistics.median(first_answers) * 1e3:.0f} ms")


def main() -> None:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--rate", type=float, default=500, help="requests a second")
    parser.add_argument("--every", type=float, default=5, help="seconds between two changes")
    chosen = parser.parse_args()
    machine()
    with Node({"model": {"model.py": source(0), "omni.toml": MANIFEST}}) as node:
        node.wake("model", None)
        first = node.ctl("status", "model")["version"]
        offer = Offer(node.address, steady("model", chosen.rate, chosen.seconds), {"model": b"null"})
        changes = change(node, offer, chosen.seconds, chosen.every)
        answers = offer.answers()
        print(f"{chosen.rate:.0f} requests/s for {chosen.seconds:.0f} s, {len(changes)} changes")
        show(answers, changes, first, chosen.seconds)


if __name__ == "__main__":
    main()
