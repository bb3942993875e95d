#!/usr/bin/env python3
"""The native engine as a model of a node, beside the same program serving alone.

Usage: native.py [WEIGHTS]     (as root, after `make build`; WEIGHTS: a GGUF file, usually that of models/chat)

Time to the first token is measured on a model of noise that takes almost none itself, in turns: through the node, and
from `omni-engine serve`. The scheduler's processor time for a token is that of all its threads, by the kernel's count
in nanoseconds, while sixteen streams of WEIGHTS are read: by one loop, as a router does, and by a thread for each. What
the kernel takes for the same sends to a loop stands beside: to a client on this machine, that is its delivery and the
wake of the client as well. The memory of the engine is compared with what it said that it would take, after prompts
that fill its cache.
"""

from __future__ import annotations

import contextlib
import json
import re
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from node import BIN, ROOT, Node, is_alive, status, until
from report import machine, row, spread

from engine import LLAMA, SIZES, Way

CHAT = ROOT / "models/chat"
TEMPLATE = (CHAT / "chat_template.jinja").read_text()
MANIFEST = """[model]
kind = "text-generation"
[runtime]
engine = "native"
[weights]
source = "file://{weights}"
[resources]
memory = "{memory}MiB"
[scaling]
concurrency = 16
[timeouts]
request = "10m"
"""
MEMORY = 512
FIRSTS = 300
STREAMS = 16
CHUNK = b"x" * 220  # as long as that of a token
TOKENS = 200
ROUNDS = 5
READER = """
import selectors, socket, sys
selector = selectors.DefaultSelector()
for _ in range(int(sys.argv[2])):
    selector.register(socket.create_connection(("127.0.0.1", int(sys.argv[1]))), selectors.EVENT_READ)
while selector.get_map():
    for key, _ in selector.select():
        if not key.fileobj.recv(65536):
            selector.unregister(key.fileobj)
"""
MOST_ADDED = 1.0  # milliseconds
MOST_CPU = 15.0  # microseconds for a token
MOST_WRONG = 1.0  # percent of the limit


def node_of(folder: Path, weights: Path) -> Node:
    files = {"omni.toml": MANIFEST.format(weights=weights, memory=MEMORY), "chat_template.jinja": TEMPLATE}
    node = Node({"m": files}, config=f'[weights]\nfolders = ["{folder}"]\n')
    node.wake("m", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1})
    return node


@contextlib.contextmanager
def alone(weights: Path) -> Iterator[tuple[str, int]]:
    """The program by itself, and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
    listen = f"{address[0]}:{address[1]}"
    command = [BIN / "omni-engine", "serve", weights, "--listen", listen, "--name", "m"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answers() -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection(address, 1).close()
            return True
        return False

    try:
        until("omni-engine", answers)
        yield address
    finally:
        process.terminate()
        process.wait(30)
        until("its end", lambda: not is_alive(process.pid))


def first_tokens(folder: Path) -> None:
    weights = folder / "quick"
    weights.mkdir()
    file = weights / "noise.gguf"
    subprocess.run([sys.executable, LLAMA / "gguf.py", file, *SIZES["quick"]], check=True)
    with node_of(folder, weights) as node, alone(file) as address:
        ways = {"through the node": Way(node.address, "m"), "alone": Way(address, "m")}
        times: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(FIRSTS + 20):
            for name in sorted(ways, reverse=number % 2 == 0):
                first, _ = ways[name].stream(2)
                if number >= 20:
                    times[name].append(first * 1000)
        for name, found in times.items():
            p99 = statistics.quantiles(found, n=100)[98]
            row(f"first token {name}, p50 and p99", f"{statistics.median(found):.2f} and {p99:.2f} ms")
        added = statistics.median(times["through the node"]) - statistics.median(times["alone"])
        row("added to the p50", f"{added:.2f} ms", f"at most {MOST_ADDED} ms", added <= MOST_ADDED)


def processor_time(pid: int) -> int:
    """Nanoseconds of all threads of a process."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files)


def in_threads(way: Way) -> int:
    """Tokens of streams that run at the same time, each read by a thread of its own."""
    with ThreadPoolExecutor(STREAMS) as pool:
        counts = list(pool.map(lambda _: way.stream(TOKENS)[1], range(STREAMS)))
    if counts != [TOKENS] * STREAMS:
        sys.exit(f"streams have failed: {counts}")
    return sum(counts)


def in_a_loop(way: Way) -> int:
    """Tokens of streams that run at the same time, read by one loop."""
    ends = {}
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
        for _ in range(STREAMS):
            connection = stack.enter_context(way.begin(TOKENS))
            connection.setblocking(False)
            ends[selector.register(connection, selectors.EVENT_READ)] = b""
        while selector.get_map():
            for key, _ in selector.select():
                data = key.fileobj.recv(65536)
                ends[key] = (ends[key] + data)[-4096:]
                if not data:
                    selector.unregister(key.fileobj)
    counts = [way.tokens(end) for end in ends.values()]
    if counts != [TOKENS] * STREAMS:
        sys.exit(f"streams have failed: {counts}")
    return sum(counts)


def sending(pause: float) -> float:
    """Microseconds that this process takes to send a chunk, one to each of as many clients after every pause."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        command = [sys.executable, "-c", READER, str(listener.getsockname()[1]), str(STREAMS)]
        process = stack.enter_context(subprocess.Popen(command))
        clients = [stack.enter_context(listener.accept()[0]) for _ in range(STREAMS)]
        for client in clients:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        spent = 0.0
        for _ in range(TOKENS):
            time.sleep(pause)
            begun = time.thread_time()
            for client in clients:
                client.send(CHUNK)
            spent += time.thread_time() - begun
        for client in clients:
            client.close()
        process.wait(30)
    return spent / (TOKENS * STREAMS) * 1e6


def per_token(node: Node) -> None:
    way, readers = Way(node.address, "m"), {"one loop": in_a_loop, "threads": in_threads}
    costs: dict[str, list[float]] = {name: [] for name in readers}
    rates: dict[str, list[float]] = {name: [] for name in readers}
    in_a_loop(way)
    for _ in range(ROUNDS):
        for name, reader in readers.items():
            before, begun = processor_time(node.pid), time.perf_counter()
            tokens = reader(way)
            costs[name].append((processor_time(node.pid) - before) / tokens / 1000)
            rates[name].append(tokens / (time.perf_counter() - begun))
    for name, found in rates.items():
        row(f"{STREAMS} streams read by {name}, tokens a second", spread(found, ".0f"))
    median = statistics.median(costs["one loop"])
    row(
        "the scheduler's time for a token, us",
        spread(costs["one loop"], ".1f"),
        f"at most {MOST_CPU}",
        median <= MOST_CPU,
    )
    row("that with a thread for each stream", spread(costs["threads"], ".1f"))
    pause = STREAMS / statistics.median(rates["one loop"])
    row("a bare send to such a loop, us", spread([sending(pause) for _ in range(ROUNDS)], ".1f"))


def engine_of(node: Node) -> int:
    return next(pid for pid in node.processes() if b"omni-engine" in Path(f"/proc/{pid}/cmdline").read_bytes())


def complete(node: Node, prompt: str, tokens: int, **more: object) -> int:
    """Tokens of a prompt that is completed."""
    body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **more}
    with contextlib.closing(node.connect()) as connection:
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        answer = json.loads(connection.getresponse().read())
    return int(answer["usage"]["prompt_tokens"])


def memory(node: Node, before: float) -> None:
    """Fills cache and steps, and compares the process's growth with what it said. `before`: MiB at its start."""
    command = [BIN / "omnictl", "--socket", node.runtime / "control.sock", "logs", "m"]
    logs = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    said = re.search(r", (\d+) MiB for steps and a cache of (\d+) positions", logs)
    if said is None:
        sys.exit(f"the engine did not say what it takes\n{logs}")
    planned, positions = (int(text) for text in said.groups())
    # Log probabilities of a prompt: steps have all their rows of logits.
    complete(node, "one two three four. " * 100, 1, echo=True, logprobs=1)
    sent, number = 0, 0
    while sent < 1.1 * positions:
        sent += complete(node, " ".join(f"{number}.{word}" for word in range(400)), 1)
        number += 1
    held = status(engine_of(node), "RssAnon")
    wrong = 100 * abs(held - before - planned) / MEMORY
    row("MiB that the engine planned, and grew by", f"{planned} and {held - before:.0f}")
    row("difference, of the limit", f"{wrong:.1f} %", f"at most {MOST_WRONG} %", wrong <= MOST_WRONG)
    row("MiB held in all, of the limit", f"{held:.0f} of {MEMORY}", "below", held < MEMORY)


def main() -> None:
    machine()
    found = sys.argv[1:] or sorted(map(str, CHAT.glob("*.gguf")))
    if not found:
        sys.exit("no weights: run set-up, which fetches those of models/chat, or name a GGUF file")
    with tempfile.TemporaryDirectory(prefix="omni-weights-") as temporary:
        folder = Path(temporary)
        folder.chmod(0o755)
        first_tokens(folder)
        real = folder / "real"
        real.mkdir()
        (real / "weights.gguf").write_bytes(Path(found[0]).read_bytes())
        with node_of(folder, real) as node:
            before = status(engine_of(node), "RssAnon")
            per_token(node)
            memory(node, before)


if __name__ == "__main__":
    main()
