#!/usr/bin/env python3
"""The first chunk of 64 streams that begin at once, beside the floor: bursts of both, one after the other.

Usage: bursts.py [--bursts 32], by bench/peers.sh, which names the folder of the peers, the programs and their folders.

A round of `bench.py` has one burst of each kind, and the median of three such bursts says little. Here both targets run
all the time, an idle one costs nothing, and the first one changes with each burst. The result is the ratio of the
medians over all bursts. Bursts of both targets are of two kinds, depending on where the kernel places the accepting
process, and a median falls into either: the ratio of the means is printed beside it, and the median of the ratios of
neighbouring bursts.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
from pathlib import Path
from types import ModuleType
from typing import Any

from report import machine, row, spread

GOAL = 1.3
STREAMS = 64
PORTS = {"floor": 18090, "ours": 18091}
KINDS = {"as fast as they go": 0, "with 10 ms between chunks": 10}
# Only the first chunk matters: enough that all streams have begun before the first ends.
CHUNKS = 30


def peers() -> ModuleType:
    """The benchmark of the peers: how targets are started, and what a burst is."""
    spec = importlib.util.spec_from_file_location("bench", Path(os.environ["PEERS"]) / "bench.py")
    if spec is None or spec.loader is None:
        raise SystemExit("bench/bursts.py: PEERS has no bench.py")
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    return bench


def burst(bench: ModuleType, target: Any, pause: int) -> float:
    """The median first chunk, in milliseconds."""
    seen = bench.sse_test(target, STREAMS, CHUNKS, pause)
    if seen["done"] != STREAMS:
        raise SystemExit(f"bench/bursts.py: {seen['done']} of {STREAMS} streams of {target.name} ended whole")
    return float(seen["first_p50"])


def compare(bench: ModuleType, targets: dict[str, Any], kind: str, pause: int, bursts: int) -> None:
    """Bursts of both; the one that is first is second the next time."""
    first: dict[str, list[float]] = {name: [] for name in targets}
    for number in range(bursts):
        for name in sorted(targets, reverse=number % 2 == 1):
            first[name].append(burst(bench, targets[name], pause))
    ratio = statistics.median(first["ours"]) / statistics.median(first["floor"])
    pairs = [ours / floor for ours, floor in zip(first["ours"], first["floor"], strict=True)]
    row(f"first chunk, {kind}", f"{ratio:.2f}x", f"<= {GOAL}x", ratio <= GOAL)
    row("    of the floor, of ours, ms", f"{spread(first['floor'])}, {spread(first['ours'])}")
    row("    of the means", f"{statistics.mean(first['ours']) / statistics.mean(first['floor']):.2f}x")
    row("    burst by burst", f"{statistics.median(pairs):.2f}x")


def main() -> None:
    """Starts both, then bursts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bursts", type=int, default=32)
    bursts = parser.parse_args().bursts
    bench = peers()
    machine()
    specs = json.loads((Path(os.environ["PEERS"]) / "targets.json").read_text())
    targets = {name: bench.Target(name, specs[name], "sse", port) for name, port in PORTS.items()}
    try:
        for target in targets.values():
            bench.wait_ready(target, target.start())
            bench.sse_test(target, 4, 10, 0, 5)  # warm
        print(f"{bursts} bursts of {STREAMS} streams each, medians with least and greatest")
        for kind, pause in KINDS.items():
            compare(bench, targets, kind, pause, bursts)
    finally:
        for target in targets.values():
            target.stop()


if __name__ == "__main__":
    main()
