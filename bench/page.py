#!/usr/bin/env python3
"""Cost of the node's page: processor time of the scheduler with pages open, at rest and under load.

Usage: page.py [--models N] [--pages N] [--seconds N]     (as root, after `make build`)

A page is what a browser asks for: its files, the live events, which are read to the end of the measurement, and the
history. Measured are spans without pages and with them in turn: at rest, where all models are stopped, and while some
of them are asked all the time, so that their rows change with each tick. Printed are medians of the spans, in percent
of one processor.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import statistics
import threading
import time
from collections.abc import Iterator

from node import Node, post, processor, status
from report import machine, row, spread

MODEL = "def handle_request(request, context):\n    return request.body.json\n"
MANIFEST = 'schema = 1\n[resources]\nmemory = "64MiB"\n'
FILES = ["/", "/page/style.css", "/page/main.js", "/page/history?span=hour"]
#: Percent of one processor for all pages together.
GOAL = 1.0
#: Models that are asked under load, and requests a second to each.
ASKED, RATE = 10, 5
ROUNDS = 3


class Pages:
    """Pages that are open until the end of the block; counts the bytes of their events."""

    def __init__(self, address: tuple[str, int], count: int) -> None:
        self.bytes = 0
        self._connections = [http.client.HTTPConnection(*address, timeout=60) for _ in range(count)]
        self._threads = [threading.Thread(target=self._read, args=(each,), daemon=True) for each in self._connections]

    def __enter__(self) -> Pages:
        for connection in self._connections:
            for path in FILES:
                connection.request("GET", path)
                connection.getresponse().read()
        for thread in self._threads:
            thread.start()
        time.sleep(2)
        return self

    def _read(self, connection: http.client.HTTPConnection) -> None:
        connection.request("GET", "/page/events")
        answer = connection.getresponse()
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError, AttributeError):
            while data := answer.read1(65536):
                self.bytes += len(data)

    def __exit__(self, *_: object) -> None:
        for connection in self._connections:
            if connection.sock is not None:
                with contextlib.suppress(OSError):
                    connection.sock.shutdown(2)
        for thread in self._threads:
            thread.join(10)


@contextlib.contextmanager
def asked(node: Node) -> Iterator[None]:
    """Requests to some of the models, at an even rate."""
    stop = threading.Event()

    def ask() -> None:
        with contextlib.closing(node.connect()) as connection:
            while not stop.wait(1 / RATE / ASKED):
                for number in range(ASKED):
                    post(connection, f"m{number:02}", None)
                    if stop.wait(1 / RATE / ASKED):
                        return

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def used(node: Node, seconds: float) -> float:
    """Percent of a processor that the scheduler uses."""
    begun, before = time.monotonic(), processor(node.pid)
    time.sleep(seconds)
    return (processor(node.pid) - before) / (time.monotonic() - begun) * 100


def measure(node: Node, admin: tuple[str, int], what: str, pages: int, seconds: float) -> None:
    """Measures without pages and with them, in turn."""
    without, with_pages, rates = [], [], []
    for _ in range(ROUNDS):
        without.append(used(node, seconds))
        with Pages(admin, pages) as opened:
            before = opened.bytes
            with_pages.append(used(node, seconds))
            rates.append((opened.bytes - before) / seconds / pages)
    more = statistics.median(with_pages) - statistics.median(without)
    row(f"{what}: scheduler without a page", spread(without, unit=" %"))
    row(f"    with {pages} pages", spread(with_pages, unit=" %"))
    row("    for the pages", f"{more:.2f} %", f"<= {GOAL} %", more <= GOAL)
    row("    bytes a second to each page", f"{statistics.median(rates):.0f}")


def main() -> None:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=50)
    parser.add_argument("--pages", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20, help="of each span")
    chosen = parser.parse_args()
    machine()
    models = {f"m{number:02}": {"model.py": MODEL, "omni.toml": MANIFEST} for number in range(chosen.models)}
    with Node(models) as node:
        host, port = json.loads((node.runtime / "node.json").read_text())["admin_listen"].rsplit(":", 1)
        admin = (host, int(port))
        measure(node, admin, f"{chosen.models} models, stopped", chosen.pages, chosen.seconds)
        for number in range(ASKED):
            node.wake(f"m{number:02}", None)
        with asked(node):
            measure(node, admin, f"{ASKED} of them asked {RATE} times a second each", chosen.pages, chosen.seconds)
        row("scheduler's memory", f"{status(node.pid, 'VmRSS'):.0f} MiB")


if __name__ == "__main__":
    main()
