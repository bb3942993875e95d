#!/usr/bin/env python3
"""A server with the OpenAI API through the node, beside the same server asked directly.

Usage: engine.py [ROUNDS]     (as root, after `make build`)

llama.cpp's server runs as a model of the node, on weights of noise that are made on the spot. The same process is asked
in turn through the node and at its own socket, which is reached through its root directory, so that both ways meet the
same load of the machine. Time to the first token is measured on a model that takes almost none itself, throughput with
four streams on one whose tokens take as long as those of a real model. The server has one processor of the machine.
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from node import ROOT, Node
from report import machine, row, spread

LLAMA = ROOT / "tests/clients/llama"
SIZES = {"quick": ("64", "2"), "real": ("768", "8")}
MANIFEST = """[model]
kind = "text-generation"
[chat]
render = "model"
[generation]
honours = ["max-tokens", "ignore-eos"]
[runtime]
engine = "openai"
command = ["python", "serve.py", "{{socket}}", "{{weights_dir}}/noise.gguf", "chat"]
[weights]
source = "file://{weights}"
[resources]
memory = "2GiB"
[scaling]
concurrency = 8
[timeouts]
request = "10m"
"""
FIRSTS = 300
STREAMS = 4
TOKENS = 100
MOST_ADDED = 1.0  # milliseconds
MOST_LOST = 2.0  # percent


class Way:
    """A way to the server."""

    def __init__(self, address: str | tuple[str, int], model: str) -> None:
        self.address = address
        self.model = model

    def begin(self, tokens: int) -> socket.socket:
        """Connection from which the stream of an answer comes."""
        messages = [{"role": "user", "content": "Say something that nobody has said before, and take your time."}]
        options = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": tokens, "ignore_eos": True}
        body = json.dumps({"model": self.model, "messages": messages, **options}).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        connection = socket.socket(socket.AF_INET if isinstance(self.address, tuple) else socket.AF_UNIX)
        connection.connect(self.address)
        connection.sendall(f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        return connection

    def tokens(self, end: bytes) -> int:
        """Tokens of an answer, by the end of its stream."""
        if b'"completion_tokens":' not in end:
            sys.exit(f"{self.address}: {end!r}")
        return int(end.split(b'"completion_tokens":')[1].split(b",")[0].split(b"}")[0])

    def stream(self, tokens: int) -> tuple[float, int]:
        """Seconds until the first token, and tokens of the answer."""
        begun, first, last = time.perf_counter(), 0.0, b""
        with self.begin(tokens) as connection:
            while data := connection.recv(65536):
                # The first event has the role alone; some servers send it before they have a token.
                if not first and (b'"content":"' in last + data or b'"length"' in data):
                    first = time.perf_counter() - begun
                last = (last + data)[-4096:]
        return first, self.tokens(last)

    def throughput(self) -> float:
        """Tokens a second over all streams."""
        counts: list[int] = []
        threads = [threading.Thread(target=lambda: counts.append(self.stream(TOKENS)[1])) for _ in range(STREAMS)]
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(counts) != STREAMS:
            sys.exit("a stream has failed")
        return sum(counts) / (time.perf_counter() - begun)


def server_socket(node: Node) -> str:
    """Path of the server's socket, as root of the machine reaches it."""
    for process in node.processes():
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        if b"serve.py" in words:
            return f"/proc/{process}/root{words[words.index(b'serve.py') + 1].decode()}"
    sys.exit("the server is not there")


def ways(folder: Path, size: str) -> tuple[Node, Way, Way]:
    """A node with the model of a size, and both ways to it."""
    weights = folder / size
    weights.mkdir()
    subprocess.run([sys.executable, LLAMA / "gguf.py", weights / "noise.gguf", *SIZES[size]], check=True)
    files = {
        "serve.py": (LLAMA / "serve.py").read_text(),
        "requirements.txt": "xllamacpp==2026.10.11549\n",
        "omni.toml": MANIFEST.format(weights=weights),
    }
    node = Node({"noise": files}, config=f'[weights]\nfolders = ["{folder}"]\n')
    messages: Any = [{"role": "user", "content": "x"}]
    node.wake("noise", {"messages": messages, "max_tokens": 1})
    return node, Way(node.address, "noise"), Way(server_socket(node), "noise")


def first_tokens(folder: Path) -> None:
    node, through, directly = ways(folder, "quick")
    with node:
        times: dict[Way, list[float]] = {through: [], directly: []}
        for number in range(FIRSTS + 20):
            for way in (through, directly) if number % 2 else (directly, through):
                first, _ = way.stream(2)
                if number >= 20:
                    times[way].append(first * 1000)
        for what, way in (("directly", directly), ("through the node", through)):
            p99 = statistics.quantiles(times[way], n=100)[98]
            row(f"first token {what}, p50 and p99", f"{statistics.median(times[way]):.2f} and {p99:.2f} ms")
        added = statistics.median(times[through]) - statistics.median(times[directly])
        row("added to the p50", f"{added:.2f} ms", f"at most {MOST_ADDED} ms", added <= MOST_ADDED)


def throughput(folder: Path, rounds: int) -> None:
    node, through, directly = ways(folder, "real")
    with node:
        found: dict[Way, list[float]] = {through: [], directly: []}
        for number in range(rounds + 1):
            for way in (through, directly) if number % 2 else (directly, through):
                figure = way.throughput()
                if number:
                    found[way].append(figure)
        for what, way in (("directly", directly), ("through the node", through)):
            row(f"{STREAMS} streams {what}, tokens a second", spread(found[way], ".1f"))
        pairs = zip(found[through], found[directly], strict=True)
        lost = statistics.median(100 * (1 - mine / theirs) for mine, theirs in pairs)
        row("lost, median of the rounds", f"{lost:.1f} %", f"at most {MOST_LOST} %", lost <= MOST_LOST)


def main() -> None:
    machine()
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory(prefix="omni-weights-") as folder:
        Path(folder).chmod(0o755)
        first_tokens(Path(folder))
        throughput(Path(folder), rounds)


if __name__ == "__main__":
    main()
