"""Over-commit through a whole node: real workers, HTTP, the scheduler's residency. As root.

What all models have together stays below what the card has free: they compete for `memory-budget`, not for the card.
"""

import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path

from driver import Driver
from node import Node
from table import MIB, Row

HERE = Path(__file__).resolve().parent
STEP = 64 * MIB
MODELS = 13
REQUESTS = 150


def budget(driver: Driver) -> int:
    """A fifth of the card, and a seventh of the host's memory, so that four times as much is safe on both."""
    host = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:"))
    most = min(driver.memory()[0] // 5, int(host.split()[1]) * 1024 // 7)
    return most // STEP * STEP


def model(size: int) -> dict[str, str]:
    """A model's directory."""
    return {
        "model.py": (HERE / "model.py").read_text(),
        "driver.py": (HERE / "driver.py").read_text(),
        "omni.toml": f"""
[runtime]
interpreter = "{sys.executable}"
[resources]
memory = "2GiB"
gpu-memory = "{size // MIB + 64}MiB"
[timeouts]
startup = "120s"
request = "120s"
[env]
WEIGHTS_MIB = "{size // MIB}"
""",
    }


def ask(node: Node, name: str) -> tuple[float, float]:
    """Milliseconds of the whole request as the node counts them, and of the swap in it."""
    with contextlib.closing(node.connect()) as connection:
        connection.request("POST", f"/ai/run/{name}", "{}", {"content-type": "application/json"})
        answer = connection.getresponse()
        body = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{name} answered {answer.status}: {body[:300]!r}\n{node.log()[-2000:]}")
    if not json.loads(body)["result"]["whole"]:
        raise RuntimeError(f"{name} lost data")
    timing = {}
    for part in (answer.getheader("server-timing") or "").split(","):
        name_and_value = part.strip().split(";dur=")
        if len(name_and_value) == 2:
            timing[name_and_value[0]] = float(name_and_value[1])
    return sum(timing.values()), timing.get("swap", 0.0)


def resident(node: Node) -> dict[str, int]:
    """MiB that each model has on the card."""
    gpus = node.ctl("gpu")["gpus"]
    return {one["model"]: one["resident_bytes"] // MIB for gpu in gpus for one in gpu["instances"]}


def config(size: int, extra: str) -> str:
    """The node's `[gpu]` section."""
    return f'[gpu]\nmemory-budget = "{size // MIB}MiB"\novercommit = 5.0\nhost-budget = "{size * 5 // MIB}MiB"\n{extra}'


def story(driver: Driver, extra: str) -> list[Row]:
    """A and B are resident, C comes in, then A is asked again."""
    size = budget(driver)
    part = (size // 8) // STEP * STEP
    sizes = {"a": 3 * part, "b": 4 * part, "c": 5 * part}
    rows = []
    with Node({name: model(bytes_) for name, bytes_ in sizes.items()}, config=config(size, extra)) as node:
        for name in ("a", "b", "c", "a", "c", "b"):
            _, swap = ask(node, name)
            there = ", ".join(f"{who} {mib}" for who, mib in sorted(resident(node).items()))
            rows.append(Row(f"story: {name.upper()} is asked; MiB on the card: {there}", f"swap {swap:.0f} ms"))
    return rows


def thirteen(driver: Driver, extra: str) -> list[Row]:
    """13 models that add up to four budgets; requests by a Zipf law, one after the other."""
    size = budget(driver)
    each = (4 * size // MODELS) // STEP * STEP
    names = [f"m{number}" for number in range(MODELS)]
    chosen = random.Random(13).choices(names, [1 / (rank + 1) for rank in range(MODELS)], k=REQUESTS)
    with Node({name: model(each) for name in names}, config=config(size, extra)) as node:
        for name in names:
            ask(node, name)
        swaps = [ask(node, name)[1] for name in chosen]
        on_card = sum(resident(node).values()) * MIB
    moved = sorted(swap for swap in swaps if swap > 0) or [0.0]
    words = f"{statistics.median(moved):.0f} ms, p99 {moved[int(len(moved) * 0.99)]:.0f} ms"
    return [
        Row(f"13 models, {13 * each / size * 100:.0f} % of the budget: requests failed", f"0 of {REQUESTS}"),
        Row("    on the card at the end, of the budget", f"{on_card / size * 100:.0f} %", "<= 100 %", on_card <= size),
        Row(f"    requests that had to wait for a swap ({len(moved)})", words),
    ]


def left_out() -> str | None:
    """Why a node cannot run here."""
    if os.geteuid() != 0:
        return "left out: a node needs root"
    if not Path("/dev/fuse").exists():
        return "left out: a node needs /dev/fuse"
    try:
        with tempfile.TemporaryDirectory(dir="/run"):
            return None
    except OSError as error:
        return f"left out: {error}"
