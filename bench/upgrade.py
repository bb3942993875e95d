#!/usr/bin/env python3
"""Effect on clients of a scheduler that is replaced under load: failures, and latency around each takeover.

Usage (root): bench/upgrade.py [--rate 500] [--seconds 60] [--every 10] [--fresh 0.2] [--streams 2]

Requests are offered at a fixed rate by processes of their own, most over kept connections, a part over a new one each;
a latency counts from the moment at which the request was due. Beside them some clients read long streams. Every
`--every` seconds a new scheduler takes over with `omnictl upgrade`.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import threading
import time

from load import Answer, Offer, failed, failures, milliseconds, steady
from node import Node
from report import machine, row, spread

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
# Seconds before and after a takeover that are counted to it.
AROUND = 0.5


def stream(node: Node) -> None:
    """Reads a stream of five seconds; raises when it is not whole."""
    with contextlib.closing(node.connect()) as connection:
        connection.request("POST", "/ai/run/tokens", BODY, HEADERS)
        answer = connection.getresponse()
        text = answer.read()
    if answer.status != 200 or not text.endswith(b"data: [DONE]\n\n"):
        raise RuntimeError(f"{answer.status}: {text[-200:]!r}")


def streams(node: Node, end: float, read: list[str | None]) -> None:
    """Streams one after the other until that moment, each across takeovers. Adds what was wrong, or nothing."""
    while time.monotonic() < end:
        try:
            stream(node)
            read.append(None)
        except (OSError, http.client.HTTPException, RuntimeError) as error:
            read.append(repr(error))


def engines(node: Node) -> dict[str, list[int]]:
    """The processes of all models."""
    return {model["name"]: [each["pid"] for each in model["instances"]] for model in node.ctl("list")["models"]}


def figures(answers: list[Answer]) -> str:
    """How long they took."""
    return ", ".join(f"{milliseconds(answers, part):.1f}" for part in (0.5, 0.99, 1)) + " ms"


def show(answers: list[Answer], closed: int, read: list[str | None], takeovers: list[tuple[float, float]]) -> None:
    """The table, but for the processes."""

    def near(answer: Answer) -> bool:
        return any(begin - AROUND <= answer.due <= end + AROUND for begin, end in takeovers)

    around = [answer for answer in answers if near(answer)]
    quiet = [answer for answer in answers if not near(answer)]
    broken = [why for why in read if why]
    row("takeovers", str(len(takeovers)))
    if takeovers:
        row("    omnictl upgrade", spread([(end - begin) * 1e3 for begin, end in takeovers], ".0f", " ms"))
    row("requests failed", failures(answers), "0", failed(answers) == 0)
    row("idle connections closed", str(closed), "0", closed == 0)
    row("streams of five seconds failed", f"{len(broken)} of {len(read)}", "0", not broken)
    row("quiet: p50, p99, longest", figures(quiet))
    row(f"within {AROUND} s of a takeover: p50, p99, longest", figures(around))
    grown = milliseconds(around, 0.99) - milliseconds(quiet, 0.99)
    row("    p99 grows by", f"{grown:.0f} ms", "<= 100 ms", grown <= 100)
    for why in broken[:10]:
        print(f"    a stream failed: {why}")


def main() -> None:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=500, help="requests a second, all together")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--every", type=float, default=10, help="seconds between takeovers")
    parser.add_argument("--fresh", type=float, default=0.2, help="the part of the requests that connects anew")
    parser.add_argument("--streams", type=int, default=2)
    chosen = parser.parse_args()
    machine()
    tokens = {"model.py": TOKENS, "omni.toml": CONCURRENT}
    with Node({"echo": {"model.py": ECHO}, "tokens": tokens}) as node:
        node.wake("echo", {"text": "hi"})
        node.wake("tokens", {"text": "hi"})
        before = engines(node)
        parts = [(chosen.rate * (1 - chosen.fresh), True), (chosen.rate * chosen.fresh, False)]
        offers = [
            Offer(node.address, steady("echo", rate, chosen.seconds), {"echo": BODY.encode()}, keeps)
            for rate, keeps in parts
        ]
        read: list[str | None] = []
        end = time.monotonic() + chosen.seconds
        readers = [threading.Thread(target=streams, args=(node, end, read)) for _ in range(chosen.streams)]
        for reader in readers:
            reader.start()
        takeovers: list[tuple[float, float]] = []
        while (at := (len(takeovers) + 1) * chosen.every) < chosen.seconds:
            offers[0].wait_until(at)
            begin = offers[0].since()
            node.upgrade()
            takeovers.append((begin, offers[0].since()))
        answers = [answer for offer in offers for answer in offer.answers()]
        for reader in readers:
            reader.join()
        after = engines(node)
        show(answers, sum(offer.closed for offer in offers), read, takeovers)
        row("model processes", "the same" if before == after else "others", "the same", before == after)


if __name__ == "__main__":
    main()
