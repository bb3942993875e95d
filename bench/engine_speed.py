#!/usr/bin/env python3
"""Speed of the native engine beside llama.cpp, on the same files, in turn.

Usage: .omni/venv/bin/python bench/engine_speed.py PEER [ROUNDS [FOLDER]]    (after `make build`, on a quiet machine)

PEER is the Python of an environment with llama-cpp-python, compiled for this machine:

    python3 -m venv peer
    CMAKE_ARGS="-DGGML_NATIVE=ON" peer/bin/pip install --no-binary llama-cpp-python llama-cpp-python

The files, noise in the shape of a small Llama with 124.7 million weights, are made in FOLDER and stay there, if it is
given; SmolLM2 is that of models/chat, or of FOLDER. Figures are medians over the rounds (five); in a round one program
comes after the other, and in the next one before. Goals are those of processors without AMX. Weights are read from
memory in each step, so the bandwidth that the engine has measured in the same rounds stands beside each figure.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import gguf
from node import BIN, ROOT
from report import machine, row

PROMPT, DEPTH, BATCHES = 512, 128, (1, 8, 16)
PREFILL_GOAL, DECODE_GOAL = 1.3, 1.0
SMOLLM = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Names of files with llama.cpp's numbers of the formats.
QUANTISED = {"Q8_0": 7, "Q4_0": 2}
PATIENCE = 60  # seconds


class Peer:
    """llama.cpp."""

    def __init__(self, python: str) -> None:
        self.command = [python, str(ROOT / "bench/llama_speed.py")]

    def run(self, *words: object) -> str:
        command = [*self.command, *map(str, words)]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    def measure(self, file: Path, threads: int) -> dict[str, float]:
        batches = ",".join(map(str, BATCHES))
        found = json.loads(self.run("measure", file, threads, PROMPT, DEPTH, batches))
        return {"prefill": found["prefill"], **found["decode"]}

    def first(self, file: Path, threads: int) -> float:
        return float(json.loads(self.run("first", file, threads))["seconds"])


def files(peer: Peer, folder: Path) -> dict[str, Path]:
    """Files by the names of their formats."""
    bf16 = folder / "BF16.gguf"
    if not bf16.exists():
        gguf.noise(bf16)
    found = {"BF16": bf16}
    for name, number in QUANTISED.items():
        found[name] = folder / f"{name}.gguf"
        if not found[name].exists():
            peer.run("quantise", bf16, found[name], number)
    for place in (folder, ROOT / "models/chat"):
        if (place / SMOLLM).exists():
            found["SmolLM2 Q4_1"] = place / SMOLLM
    return found


def engine(file: Path, threads: int) -> tuple[dict[str, float], float]:
    """Speeds of a round, and bytes a second of memory."""
    command = [BIN / "omni-engine", "bench", file, "--rounds", "1", "--threads", str(threads)]
    command += ["--prompts", str(PROMPT), "--depth", str(DEPTH), "--batches", ",".join(map(str, BATCHES))]
    found: Any = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    speeds = {str(answers["batch"]): answers["tokens_per_second"] for answers in found["decode"]}
    return {"prefill": found["prefill"][0]["tokens_per_second"], **speeds}, found["bandwidth"]


def engine_first(file: Path, threads: int) -> float:
    """Seconds from the start of the program to its answer of one token over HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    body = json.dumps({"model": "x", "prompt": "The capital of France is", "max_tokens": 1}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", body, {"content-type": "application/json"}
    )
    begun = time.perf_counter()
    command = [BIN / "omni-engine", "serve", file, "--listen", f"127.0.0.1:{port}", "--threads", str(threads)]
    with subprocess.Popen([*command, "--name", "x"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as program:
        try:
            while True:
                try:
                    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                        answer.read()
                    return time.perf_counter() - begun
                except urllib.error.HTTPError as error:
                    sys.exit(f"the engine answers {error.code}: {error.read()!r}")
                except urllib.error.URLError:
                    if program.poll() is not None or time.perf_counter() - begun > PATIENCE:
                        sys.exit("the engine does not serve")
                    time.sleep(0.002)
        finally:
            program.kill()


def compare(peer: Peer, name: str, file: Path, threads: int, rounds: int) -> None:
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    bandwidths = []
    for number in range(rounds):
        for mine in (True, False) if number % 2 == 0 else (False, True):
            if mine:
                speeds, bandwidth = engine(file, threads)
                ours.append(speeds)
                bandwidths.append(bandwidth / 1e9)
            else:
                theirs.append(peer.measure(file, threads))
    memory = statistics.median(bandwidths)
    for measure, goal in [("prefill", PREFILL_GOAL), *((str(batch), DECODE_GOAL) for batch in BATCHES)]:
        mine, other = (statistics.median(speeds[measure] for speeds in side) for side in (ours, theirs))
        what = f"{name}, prompt of {PROMPT}" if measure == "prefill" else f"{name}, answers of {measure}"
        figure = f"{mine:.0f} to {other:.0f}, {mine / other:.2f}x"
        row(what, figure, f"at least {goal}x, {memory:.1f} GB/s", mine / other >= goal)


def first_tokens(peer: Peer, file: Path, threads: int, rounds: int) -> None:
    """Both have read the file a moment ago."""
    ours, theirs = [], []
    for _ in range(rounds + 1):
        ours.append(engine_first(file, threads))
        theirs.append(peer.first(file, threads))
    mine, other = (1000 * statistics.median(times[1:]) for times in (ours, theirs))
    row("SmolLM2, start of the server to the first token by HTTP", f"{mine:.0f} ms")
    row("llama.cpp, load to the first token within a process", f"{other:.0f} ms")


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    peer = Peer(sys.argv[1])
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    threads = os.cpu_count() or 1
    machine()
    print(peer.run("version").strip())
    print(f"{threads} threads, medians of {rounds} rounds; tokens a second of omni-engine to those of llama.cpp\n")
    with tempfile.TemporaryDirectory(prefix="omni-speed-") as temporary:
        folder = Path(sys.argv[3] if len(sys.argv) > 3 else temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name, file in files(peer, folder).items():
            compare(peer, name, file, threads, rounds)
            if file.name == SMOLLM:
                first_tokens(peer, file, threads, rounds)


if __name__ == "__main__":
    main()
