#!/usr/bin/env python3
"""What a stopped, a killed and an idle model cost: time to the first answer, outage, memory, processor.

Usage (root): bench/coldstart.py [--starts 20] [--idle-models 100] [--idle-seconds 60] [--no-embeddings]

Takes the programs of `make build` (or of the folder OMNI_BIN), and the example models. Each figure is of a node of its
own that is started for it in a temporary folder; environments are built before anything is measured. Prints one table.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(os.environ.get("OMNI_BIN", ROOT / "target/release"))
ECHO = "def handle_request(request, context):\n    return request.body.json\n"
TICKS = os.sysconf("SC_CLK_TCK")
# Steps of a start as the node's log tells them, in order: name, and what marks its end.
STEPS = [
    ("request to environment asked for", ("preparing", None)),
    ("environment found", ("starting", None)),
    ("launcher: groups, worker", (None, "the instance is started")),
    ("sandbox, Python, imports", ("ready", None)),
]


Files = dict[str, str]


class Node:
    """A node of release programs in a folder of its own."""

    def __init__(
        self, models: dict[str, Path | dict[str, str]], extra: dict[str, dict[str, str]] | None = None
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="omni-bench-")
        folder = Path(self._folder.name)
        folder.chmod(0o755)
        for name, source in models.items():
            target = folder / "models" / name
            target.mkdir(parents=True)
            files = (
                source
                if isinstance(source, dict)
                else {
                    file.name: file.read_text() for file in source.iterdir() if file.suffix in (".py", ".txt", ".toml")
                }
            )
            for file, text in (files | (extra or {}).get(name, {})).items():
                (target / file).write_text(text)
        self.runtime = Path("/run") / folder.name
        (folder / "node.toml").write_text(f'[node]\ncgroup-parent = "{folder.name}"\n')
        self._log = folder / "log"
        command = [BIN / "omni-scheduler", "--config", folder / "node.toml", "--models", folder / "models"]
        command += ["--state-dir", folder / "state", "--cache-dir", folder / "cache", "--runtime-dir", self.runtime]
        command += ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until("the node", (self.runtime / "node.json").exists)
        said = json.loads((self.runtime / "node.json").read_text())
        self._host, port = said["listen"].rsplit(":", 1)
        self._port = int(port)
        until("its models", lambda: len(self.ctl("list")["models"]) == len(models))

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(60):
            sys.exit(f"the node ended badly\n{self._log.read_text()}")
        for left in self.runtime.iterdir():
            left.rmdir() if left.is_dir() else left.unlink()
        self.runtime.rmdir()
        self._folder.cleanup()

    def ctl(self, *arguments: str) -> dict:
        command = [BIN / "omnictl", "--socket", self.runtime / "control.sock", "-o", "json", *arguments]
        return json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout or "{}")

    def ask(self, model: str, body: object) -> tuple[int, float]:
        """Status, and seconds from connecting to the end of the answer."""
        begun = time.perf_counter()
        with contextlib.closing(self.connect()) as connection:
            return post(connection, model, body), time.perf_counter() - begun

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._host, self._port, timeout=600)

    def wake(self, model: str, body: object) -> float:
        """The first answer, whatever has to be built for it."""
        status, seconds = self.ask(model, body)
        while status == 503:
            time.sleep(0.5)
            status, seconds = self.ask(model, body)
        if status != 200:
            sys.exit(f"{model} answered {status}\n{self._log.read_text()}")
        return seconds

    def await_stop(self, model: str) -> None:
        instances = self.runtime / "instances"
        until("the model to stop", lambda: not self.ctl("status", model)["instance"] and not any(instances.iterdir()))

    def steps(self) -> list[list[float]]:
        """Seconds of each of STEPS for each start, from the log."""
        marks = [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]
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


def post(connection: http.client.HTTPConnection, model: str, body: object) -> int:
    """The answer's status; the connection stays open."""
    connection.request("POST", f"/ai/run/{model}", json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    return answer.status


def until(what: str, is_so: object, limit: float = 60) -> None:
    end = time.monotonic() + limit
    while not is_so():  # type: ignore[operator]
        if time.monotonic() > end:
            sys.exit(f"waited {limit} s for {what}")
        time.sleep(0.005)


def status(pid: int, key: str) -> float:
    """A size of /proc/PID/status in MiB."""
    found = re.search(rf"^{key}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.M)
    return int(found[1]) / 1024 if found else 0.0


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def processor(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


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
        for (step, _), seconds in list(zip(STEPS, node.steps(), strict=True))[1:]:
            row(f"    {step}", spread(seconds[1:]))
    return statistics.median(times)


def outage(kills: int, start: float) -> None:
    with Node({"cowsay": ROOT / "models/cowsay"}) as node:
        node.wake("cowsay", {"text": "hi"})
        times = []
        for _ in range(kills):
            os.kill(node.ctl("status", "cowsay")["instance"]["pid"], signal.SIGKILL)
            begun = time.perf_counter()
            while node.ask("cowsay", {"text": "hi"})[0] != 200:
                pass
            times.append(time.perf_counter() - begun)
            node.ctl("start", "cowsay", "--wait")
        row(f"outage after kill -9 of the instance, n={kills}", spread(times), f"<= {start * 1e3 + 30:.0f} ms")


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
        engines = [model["instance"]["pid"] for model in node.ctl("list")["models"]]
        workers = [parent(parent(pid)) for pid in engines]
        sizes = sorted(status(worker, "VmRSS") for worker in workers)
        own = sorted(status(worker, "RssAnon") for worker in workers)
        row("worker, resident", f"{sizes[0]:.1f} to {sizes[-1]:.1f} MiB", "<= 3 MiB")
        row("    of that its own (not shared)", f"{own[0]:.1f} to {own[-1]:.1f} MiB")
        row("engine, resident", f"{max(status(engine, 'VmRSS') for engine in engines):.1f} MiB")


def idle(models: int, seconds: float) -> None:
    with Node({f"idle-{number}": {"model.py": ECHO} for number in range(models)}) as node:
        begun = time.perf_counter()
        for number in range(models):
            node.wake(f"idle-{number}", 1)
        row(f"{models} models started one after the other", f"{time.perf_counter() - begun:.1f} s")
        time.sleep(2)
        engines = [model["instance"]["pid"] for model in node.ctl("list")["models"]]
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
    outage(chosen.starts, start)
    if not chosen.no_embeddings:
        cold("embeddings", {"text": ["A man is eating food."]}, max(3, chosen.starts // 4), "stated")
    memory(5)
    if chosen.idle_models:
        idle(chosen.idle_models, chosen.idle_seconds)


if __name__ == "__main__":
    main()
