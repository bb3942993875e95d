#!/usr/bin/env python3
"""Latency of the native engine: streams beside a long prompt, and prompts whose beginning is in the cache.

Usage: engine_latency.py [WEIGHTS [ROUNDS]]     (after `make build`, on a quiet machine)

WEIGHTS is a GGUF file, usually that of models/chat. A client reads a stream, first alone and then while a prompt of
4,096 tokens is computed for another one: the 99th percentiles of the times between its tokens are compared. The time to
the first token of a prompt of 2,100 tokens is measured on a cache without it, and on one with its first 2,000.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from native import alone
from node import ROOT
from report import machine, row, spread

WEIGHTS = ROOT / "models/chat/SmolLM2-135M-Instruct.Q4_1.gguf"
LONG, BEGINNING, END = 4096, 2000, 100
IDLE = 300  # tokens
MOST_SLOWER, LEAST_QUICKER = 2.0, 10.0
# Tokens that prompts are made of: any will do, as answers are not looked at.
FIRST, LAST = 1000, 40000


class Client:
    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.seed = itertools.count(int.from_bytes(os.urandom(3), "big"))

    def prompt(self, tokens: int) -> list[int]:
        """Tokens that no other prompt begins with."""
        seed = next(self.seed)
        return [FIRST + (seed * 7919 + at * 104729) % (LAST - FIRST) for at in range(tokens)]

    def times(self, prompt: list[int], tokens: int) -> Iterator[float]:
        """Times at which the pieces of an answer arrive."""
        options = {"model": "m", "stream": True, "max_tokens": tokens, "ignore_eos": True}
        body = json.dumps({"prompt": prompt, **options}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        with socket.create_connection(self.address) as connection:
            connection.sendall(f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
            said = b""
            while data := connection.recv(65536):
                said += data
                yield from itertools.repeat(time.perf_counter(), data.count(b'"text":"'))
        if b"data: [DONE]" not in said:
            sys.exit(f"a stream has failed: {said[:2000]!r}")

    def first(self, prompt: list[int]) -> float:
        begun = time.perf_counter()
        return next(iter(list(self.times(prompt, 1)))) - begun


def beside_a_long_prompt(client: Client) -> tuple[float, float, float]:
    """99th percentiles in milliseconds between tokens, alone and beside a prompt; seconds that the prompt took."""
    took: list[float] = []
    other = threading.Thread(target=lambda: took.append(client.first(client.prompt(LONG))))
    gaps: tuple[list[float], list[float]] = ([], [])
    last, begun = 0.0, False
    # Enough for the prompt to be computed meanwhile; the rest of the answer is not waited for.
    with contextlib.closing(client.times(client.prompt(16), 3500)) as arrivals:
        for number, now in enumerate(arrivals):
            if number > 16 and not (begun and not other.is_alive()):
                gaps[begun].append((now - last) * 1000)
            last = now
            if number == IDLE:
                other.start()
                begun = True
            if begun and not other.is_alive():
                break
    other.join()
    alone_p99, beside_p99 = (statistics.quantiles(found, n=100)[98] for found in gaps)
    return alone_p99, beside_p99, took[0]


def cached_beginning(client: Client) -> tuple[float, float]:
    """Milliseconds to the first token without and with the beginning in the cache."""
    beginning = client.prompt(BEGINNING)
    cold = client.first(beginning + client.prompt(END))
    warm = client.first(beginning + client.prompt(END))
    return cold * 1000, warm * 1000


def main() -> None:
    weights = Path(sys.argv[1]) if len(sys.argv) > 1 else WEIGHTS
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    machine()
    with alone(weights) as address:
        client = Client(address)
        client.first(client.prompt(64))
        found = [beside_a_long_prompt(client) for _ in range(rounds)]
        row("between tokens, p99 alone, ms", spread([alone for alone, _, _ in found]))
        row(f"beside a prompt of {LONG} tokens", spread([beside for _, beside, _ in found]))
        slower = statistics.median(beside / alone for alone, beside, _ in found)
        row("as often", f"{slower:.2f}", f"at most {MOST_SLOWER}", slower <= MOST_SLOWER)
        row("seconds to the prompt's first token", spread([took for _, _, took in found]))
        times = [cached_beginning(client) for _ in range(rounds)]
        row(f"first token of {BEGINNING + END} tokens, ms", spread([cold for cold, _ in times], ".0f"))
        row(f"with {BEGINNING} of them in the cache", spread([warm for _, warm in times], ".0f"))
        quicker = statistics.median(cold / warm for cold, warm in times)
        row("times as quick", f"{quicker:.1f}", f"at least {LEAST_QUICKER:.0f}", quicker >= LEAST_QUICKER)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(str(error))
