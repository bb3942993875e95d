"""Output of the benchmarks: the machine, then a table of figures beside their goals."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path

from node import BIN, ROOT


def machine() -> None:
    """Prints on what this runs: a figure without it says nothing."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    processor = names[0].split(":", 1)[1].strip() if names else platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    load = Path("/proc/loadavg").read_text().split()[0]
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    print(f"{os.cpu_count()} CPUs ({processor}), {memory} GiB, Linux {platform.release()}, load {load}")
    print(f"commit {commit}, programs of {BIN}", flush=True)


def row(what: str, figure: str, goal: str = "", reached: bool | None = None) -> None:
    """Prints a figure; `reached` where there is a goal."""
    words = {None: "", True: "reached", False: "NOT REACHED"}
    print(f"{what:<58} {figure:>30}  {goal:<22} {words[reached]}".rstrip(), flush=True)


def spread(values: Sequence[float], form: str = ".2f", unit: str = "") -> str:
    """The median, with the least and the greatest."""
    least, middle, most = min(values), statistics.median(values), max(values)
    return f"{middle:{form}}{unit} ({least:{form}} to {most:{form}})"
