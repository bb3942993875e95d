#!/usr/bin/env python3
"""Cost of a stopped, a killed and an idle model: time to the first answer, outage, memory, processor.

Usage (root): bench/coldstart.py [--starts 20] [--idle-models 100] [--idle-seconds 60] [--no-embeddings]

Takes the programs of `make build` (or of the folder OMNI_BIN), and the example models. Each figure is of a separate
node, started in a temporary folder; environments are built before anything is measured. Prints one table.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import time
from datetime import datetime
from pathlib import Path

from node import BIN, ROOT, Node, post, processor, status, until

ECHO = "def handle_request(request, context):\n    return request.body.json\n"

# Steps of a start by the node's log, in order: name, and the mark of its end.
STEPS = [
    ("request to environment asked for", ("preparing", None)),
    ("environment found", ("starting", None)),
    ("launcher: groups, worker", (None, "the instance is started")),
    ("sandbox, Python, imports", ("ready", None)),
]


def steps(log: str) -> list[list[float]]:
    """Seconds of each of STEPS for each start, from the log."""
    marks = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    found: list[list[float]] = [[] for _ in STEPS]
    last = None
    for mark in marks:
        at = datetime.fromisoformat(mark["timestamp"].replace("Z", "+00:00")).timestamp()
        for number, (_, (state, message)) in enumerate(STEPS):
            if (state and mark.get("to") == state) or (message and mark["message"] == message):
                if number and last is not None:
                    found[number].append(at - last)
                last = at
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def row(what: str, figure: str, target: str = "") -> None:
    print(f"{what:<52} {figure:>24}  {target}", flush=True)


def spread(times: list[float]) -> str:
    ordered = sorted(seconds * 1e3 for seconds in times)
    return f"{statistics.median(ordered):.0f} ms ({ordered[0]:.0f} to {ordered[-1]:.0f})"


def cold(name: str, body: object, starts: int, target: str) -> float:
    source = ROOT / "models" / name
    given = (source / "omni.toml").read_text() if (source / "omni.toml").exists() else "schema = 1\n"
    soon = given + '\n[scaling]\nidle-timeout = "100ms"\n'
    if re.search(r"^\[scaling\]", given, re.M):
        soon = re.sub(r"^\[scaling\]$", '[scaling]\nidle-timeout = "100ms"', given, flags=re.M)
    with Node({name: source}, {name: {"omni.toml": soon}}) as node:
        node.wake(name, body)
        times = []
        for _ in range(starts):
            node.await_stop(name)
            times.append(node.wake(name, body))
        row(f"cold start of {name}, n={starts}", spread(times), target)
        for (step, _), seconds in list(zip(STEPS, steps(node.log()), strict=True))[1:]:
            row(f"    {step}", spread(seconds[1:]))
    return statistics.median(times)


def outage(name: str, body: object, kills: int, target: str) -> None:
    with Node({name: ROOT / "models" / name}) as node:
        node.wake(name, body)
        times = []
        for _ in range(kills):
            os.kill(node.ctl("status", name)["instances"][0]["pid"], signal.SIGKILL)
            begun = time.perf_counter()
            while node.ask(name, body)[0] != 200:
                pass
            times.append(time.perf_counter() - begun)
            node.ctl("start", name, "--wait")
        row(f"outage of {name} after kill -9, n={kills}", spread(times), target)


def further(name: str, body: object, more: int) -> None:
    """Memory of each further idle instance, with its worker and the growth of the zygote."""
    taken = proportional(name, body, 1 + more) - proportional(name, body, 1)
    row(f"each further idle instance of {name}, PSS", f"{taken / more:.1f} MiB", "<= 4 MiB")


def proportional(name: str, body: object, instances: int) -> float:
    """Memory of this many idle instances, each process with its share of shared pages, in MiB."""
    source = ROOT / "models" / name
    given = (source / "omni.toml").read_text()
    scaling = f"[scaling]\nmin-instances = {instances}\nmax-instances = {instances}\n"
    with Node({name: source}, {name: {"omni.toml": f"{given}\n{scaling}"}}) as node:
        node.wake(name, body)
        until("its instances", lambda: node.states(name).count("ready") == instances)
        time.sleep(1)
        return sum(status(pid, "Pss", "smaps_rollup") for pid in node.processes())


def memory(models: int) -> None:
    with Node({f"idle-{number}": {"model.py": ECHO} for number in range(models)}) as node:
        before = status(node.process.pid, "VmRSS")
        for number in range(models):
            node.wake(f"idle-{number}", 1)
        row("scheduler, no model running", f"{before:.1f} MiB")
        row(f"scheduler, {models} idle models", f"{status(node.process.pid, 'VmRSS'):.1f} MiB", "<= 15 MiB")
        quiet = status(node.process.pid, "VmRSS")
        with contextlib.ExitStack() as held:
            for _ in range(1000):
                post(held.enter_context(contextlib.closing(node.connect())), "idle-0", 1)
            grown = (status(node.process.pid, "VmRSS") - quiet) * 1024 / 1000
            row("    for each of 1,000 open connections", f"{grown:.1f} KiB")
        row("    for each idle model", f"{(quiet - before) * 1024 / models:.0f} KiB")
        engines = [model["instances"][0]["pid"] for model in node.ctl("list")["models"]]
        workers = [parent(parent(pid)) for pid in engines]
        sizes = sorted(status(worker, "VmRSS") for worker in workers)
        own = sorted(status(worker, "RssAnon") for worker in workers)
        row("worker, resident", f"{sizes[0]:.1f} to {sizes[-1]:.1f} MiB", "<= 3 MiB")
        row("    of that its own (not shared)", f"{own[0]:.1f} to {own[-1]:.1f} MiB")
        row("engine, resident", f"{max(status(engine, 'VmRSS') for engine in engines):.1f} MiB")


def idle(models: int, seconds: float) -> None:
    # All of them are within the node's budget: none makes room for another.
    small = {"model.py": ECHO, "omni.toml": '[resources]\nmemory = "64MiB"\n'}
    with Node({f"idle-{number}": small for number in range(models)}) as node:
        begun = time.perf_counter()
        for number in range(models):
            node.wake(f"idle-{number}", 1)
        row(f"{models} models started one after the other", f"{time.perf_counter() - begun:.1f} s")
        time.sleep(2)
        engines = [model["instances"][0]["pid"] for model in node.ctl("list")["models"]]
        workers = [parent(parent(pid)) for pid in engines]
        before = [processor(node.process.pid), sum(map(processor, workers))]
        time.sleep(seconds)
        after = [processor(node.process.pid), sum(map(processor, workers))]
        scheduler, all_workers = ((b - a) / seconds * 100 for a, b in zip(before, after, strict=True))
        row(f"scheduler, {models} idle models, over {seconds:.0f} s", f"{scheduler:.2f} % of a core", "<= 0.5 %")
        row("    their workers, all together", f"{all_workers:.2f} % of a core")
        row("    scheduler, resident", f"{status(node.process.pid, 'VmRSS'):.1f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--idle-models", type=int, default=100)
    parser.add_argument("--idle-seconds", type=float, default=60)
    parser.add_argument("--no-embeddings", action="store_true")
    chosen = parser.parse_args()
    load = Path("/proc/loadavg").read_text().split()[0]
    print(f"{os.cpu_count()} CPUs, load {load}, programs of {BIN}")
    start = cold("cowsay", {"text": "hi"}, chosen.starts, "<= 150 ms")
    outage("cowsay", {"text": "hi"}, chosen.starts, f"<= {start * 1e3 + 30:.0f} ms")
    if not chosen.no_embeddings:
        body = {"text": ["A man is eating food."]}
        cold("embeddings", body, max(3, chosen.starts // 4), "stated")
        outage("embeddings", body, chosen.starts, "<= 60 ms")
        further("embeddings", body, 4)
    memory(5)
    if chosen.idle_models:
        idle(chosen.idle_models, chosen.idle_seconds)


if __name__ == "__main__":
    main()
