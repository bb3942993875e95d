#!/usr/bin/env python3
"""Batches of the node beside those of mosec and LitServe: the same handler, the same clients, interleaved rounds.

Usage: batching.py [--rounds N] [--seconds S] [--targets ours,mosec,...]     (as root, after `make build`)

The handler takes 5 ms for a batch and 0.2 ms for each of its members (it sleeps). Closed loops: 1, 4, 16 and 64
clients, each of which sends the next request once it has its answer, by `wrk` (Debian package). Poisson: requests at
random times, 20 and 1,000 a second, mean and 99th percentile of their times. `best` is what a batch of all clients
would give without any cost of its own: clients / (5 ms + clients x 0.2 ms). The peers are installed into target/peers
on first use.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from node import BIN, ROOT

PEERS = ROOT / "target/peers"
PORT = 18083
CLIENTS = [1, 4, 16, 64]
RATES = [20, 1000]
FIXED, EACH = 0.005, 0.0002

OURS = f"""
import time

def handle_batch(requests, context):
    time.sleep({FIXED} + {EACH} * len(requests))
    return [request.body.json["n"] for request in requests]
"""
MOSEC = f"""
import sys, time
from mosec import Server, Worker

class Batch(Worker):
    def forward(self, data):
        time.sleep({FIXED} + {EACH} * len(data))
        return [item["n"] for item in data]

if __name__ == "__main__":
    wait = int(sys.argv.pop())
    server = Server()
    server.append_worker(Batch, num=1, max_batch_size=64, max_wait_time=wait, timeout=60)
    server.run()
"""
LITSERVE = f"""
import sys, time
import litserve

class Batch(litserve.LitAPI):
    def setup(self, device): ...
    def decode_request(self, request): return request["n"]
    def batch(self, inputs): return inputs
    def unbatch(self, output): return output
    def predict(self, inputs):
        time.sleep({FIXED} + {EACH} * len(inputs))
        return list(inputs)
    def encode_response(self, output): return output

if __name__ == "__main__":
    api = Batch(api_path="/inference", max_batch_size=64, batch_timeout=float(sys.argv[1]))
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=60)
    server.run(host="127.0.0.1", port={PORT}, num_api_servers=1, log_level="warning", generate_client_file=False,
               access_log=False)
"""
TARGETS = ["ours", "mosec", "mosec-1ms", "litserve", "litserve-10ms"]
POST = 'wrk.method = "POST"\nwrk.headers["content-type"] = "application/json"\nwrk.body = \'{"n": 7}\'\n'


def python_of(package: str) -> str:
    """The interpreter of an environment with this package."""
    python = PEERS / package / "bin/python"
    if not python.exists():
        subprocess.run([BIN / "uv", "venv", "--quiet", "--python", "python3.11", PEERS / package], check=True)
        subprocess.run([BIN / "uv", "pip", "install", "--quiet", "--python", python, package], check=True)
    return str(python)


def command(target: str, folder: Path) -> tuple[list[str], str]:
    """The command of a server, and the path of its handler."""
    name, _, variant = target.partition("-")
    if name == "ours":
        model = folder / "models/batch"
        model.mkdir(parents=True)
        (model / "model.py").write_text(OURS)
        (model / "omni.toml").write_text("[batching]\nmax = 64\n")
        places = {"state": "state", "cache": "cache", "runtime": "run"}
        options = [f"--{option}-dir={folder / place}" for option, place in places.items()]
        listen = [f"--listen=127.0.0.1:{PORT}", "--admin-listen=127.0.0.1:0", f"--models={folder / 'models'}"]
        return [str(BIN / "omni-scheduler"), *options, *listen], "/ai/run/batch"
    script = folder / f"{name}_model.py"
    script.write_text({"mosec": MOSEC, "litserve": LITSERVE}[name])
    if name == "mosec":
        options = ["--address=127.0.0.1", f"--port={PORT}", "--log-level=warning", "1" if variant else "10"]
        return [python_of(name), str(script), *options], "/inference"
    return [python_of(name), str(script), "0.01" if variant else "0"], "/inference"


def closed_loop(path: str, clients: int, seconds: int, folder: Path) -> float:
    """Answers per second of clients that each wait for their answer."""
    script = folder / "post.lua"
    script.write_text(POST)
    url = f"http://127.0.0.1:{PORT}{path}"
    run = ["wrk", "-t1", f"-c{clients}", f"-d{seconds}s", "--timeout", "10s", "-s", str(script), url]
    said = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in said:
        raise RuntimeError(said)
    return float(re.search(r"Requests/sec:\s+([\d.]+)", said)[1])


async def poisson(path: str, rate: int, seconds: int) -> tuple[float, float]:
    """Mean and 99th percentile of the times of requests at random times, in milliseconds."""
    body = b'{"n": 7}'
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(body)}\r\n\r\n"
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    times: list[float] = []

    async def ask() -> None:
        began = time.monotonic()
        reader, writer = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", PORT)
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(answer.decode())
        await reader.readexactly(int(re.search(rb"content-length: (\d+)", answer.lower())[1]))
        times.append(time.monotonic() - began)
        idle.append((reader, writer))

    chance = random.Random(rate)
    tasks, at, begin = [], 0.0, time.monotonic()
    while (at := at + chance.expovariate(rate)) < seconds:
        await asyncio.sleep(max(0.0, begin + at - time.monotonic()))
        tasks.append(asyncio.ensure_future(ask()))
    await asyncio.gather(*tasks)
    for _, writer in idle:
        writer.close()
    times.sort()
    return statistics.mean(times) * 1e3, times[int(len(times) * 0.99)] * 1e3


def until_ready(path: str, process: subprocess.Popen[bytes]) -> None:
    """Returns once a request was answered."""
    due = time.monotonic() + 90
    while time.monotonic() < due and process.poll() is None:
        try:
            asyncio.run(poisson(path, 20, 1))
        except (OSError, RuntimeError, asyncio.IncompleteReadError):
            time.sleep(0.2)
        else:
            return
    raise RuntimeError("it does not answer")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a server with all its processes, and waits for its port.

    LitServe's first process ends without its children, which would go on to serve at the port of the next target.
    """
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    due = time.monotonic() + 10
    while time.monotonic() < due:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", PORT)):
                return
        time.sleep(0.1)
    raise RuntimeError(f"port {PORT} is still served after the end of its server")


def measure(target: str, seconds: int) -> dict[str, float]:
    """All figures of one target."""
    folder = Path(tempfile.mkdtemp(prefix="omni-batching-"))
    folder.chmod(0o755)
    run, path = command(target, folder)
    log = (folder / "log").open("wb")
    process = subprocess.Popen(["nice", "-n", "10", *run], stdout=log, stderr=log, cwd=folder, start_new_session=True)
    try:
        until_ready(path, process)
        closed_loop(path, 16, 2, folder)  # to warm up
        found = {f"c{clients}": closed_loop(path, clients, seconds, folder) for clients in CLIENTS}
        for rate in RATES:
            found[f"mean{rate}"], found[f"p99 {rate}"] = asyncio.run(poisson(path, rate, seconds * 2))
        return found
    finally:
        stop(process)
        log.close()
        shutil.rmtree(folder)


def main() -> int:
    """Prints a table of medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--targets", default=",".join(TARGETS))
    options = parser.parse_args()
    os.nice(-10)  # the clients measure the servers, not their own wait for a processor
    targets = options.targets.split(",")
    rows: dict[str, list[dict[str, float]]] = {target: [] for target in targets}
    for _ in range(options.rounds):
        for target in targets:
            rows[target].append(measure(target, options.seconds))
            print(target, rows[target][-1], file=sys.stderr, flush=True)
    columns = [f"c{clients}" for clients in CLIENTS] + [f"{what}{rate}" for rate in RATES for what in ("mean", "p99 ")]
    print("| target |", " | ".join(columns), "|")
    print("|" + " --- |" * (1 + len(columns)))
    best = [f"{clients / (FIXED + EACH * clients):.0f}" for clients in CLIENTS]
    print("| best |", " | ".join(best + [""] * 2 * len(RATES)), "|")
    for target, found in rows.items():
        medians = [statistics.median(row[column] for row in found) for column in columns]
        figures = [f"{figure:.{0 if at < len(CLIENTS) else 2}f}" for at, figure in enumerate(medians)]
        print(f"| {target} |", " | ".join(figures), "|")
    return 0


if __name__ == "__main__":
    sys.exit(main())
