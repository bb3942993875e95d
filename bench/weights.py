#!/usr/bin/env python3
"""Fetching weights: omni-weights beside parallel ranges of curl, from the same server and file, in turns.

usage: bench/weights.py [--mib 2048] [--rounds 7] [--limit 0]

Takes omni-weights of `make build` (or of the folder OMNI_BIN), curl, and as the server rclone of the tests (or
RCLONE). curl runs as often at a time as omni-weights has connections, each with a range of its own, and computes no
digest; omni-weights does. Both write to the same file system, and neither waits for the disk. Passes at nine tenths of
curl's throughput, by the medians.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(os.environ.get("OMNI_BIN", ROOT / "target/release"))
RCLONE = os.environ.get("RCLONE", str(ROOT / ".omni/venv/bin/rclone"))
CONNECTIONS = 8
LEAST = 0.9


def served(folder: Path, limit: int) -> tuple[subprocess.Popen[bytes], str]:
    """rclone, serving a folder as a store, and its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [RCLONE, "serve", "http", "--config", "/dev/null", "--addr", f"127.0.0.1:{port}", str(folder)]
    command += ["--bwlimit", f"{limit}M"] if limit else []
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return server, f"http://127.0.0.1:{port}"
        except OSError:
            if server.poll() is not None:
                sys.exit("rclone has ended")
            time.sleep(0.05)


def by_curl(url: str, size: int, folder: Path) -> float:
    """Seconds that curl takes."""
    step = -(-size // CONNECTIONS)
    began = time.monotonic()
    ranges = [(at, min(at + step, size) - 1) for at in range(0, size, step)]
    runs = [
        subprocess.Popen(["curl", "-sSf", "-r", f"{first}-{last}", "-o", folder / f"{first}", url])
        for first, last in ranges
    ]
    if any(run.wait() for run in runs):
        sys.exit("curl failed")
    seconds = time.monotonic() - began
    if sum((folder / f"{first}").stat().st_size for first, _ in ranges) != size:
        sys.exit("curl fetched another size")
    return seconds


def by_omni(url: str, digest: str, folder: Path) -> float:
    """Seconds that omni-weights takes, its start and the digest included."""
    order = {"source": url, "sha256": digest, "files": {}, "redirects": [], "private_hosts": ["127.0.0.1"]}
    order |= {"most_bytes": 1 << 50, "boot": "bench"}
    for name in ("work", "files"):
        (folder / name).mkdir()
    (folder / "order.json").write_text(json.dumps(order))
    began = time.monotonic()
    command = [BIN / "omni-weights", folder / "order.json", folder / "work", folder / "files"]
    ended = subprocess.run(command, env={}, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    if ended.returncode != 0:
        sys.exit(f"omni-weights failed: {ended.stdout.splitlines()[-1:]}")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="omni-weights beside curl")
    parser.add_argument("--mib", type=int, default=2048, help="size of the file")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--limit", type=int, default=0, help="MiB per second that the server sends; 0: what it can")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="omni-bench-") as temporary:
        base = Path(temporary)
        (base / "served").mkdir()
        digest, size = hashlib.sha256(), options.mib << 20
        with (base / "served/weights.bin").open("wb") as file:
            for _ in range(options.mib):
                piece = os.urandom(1 << 20)
                digest.update(piece)
                file.write(piece)
        os.sync()
        server, address = served(base / "served", options.limit)
        url = f"{address}/weights.bin"
        seconds: dict[str, list[float]] = {"curl": [], "omni-weights": []}
        try:
            for turn in range(options.rounds + 1):
                for name, times in seconds.items():
                    with tempfile.TemporaryDirectory(dir=base) as folder:
                        place = Path(folder)
                        took = by_curl(url, size, place) if name == "curl" else by_omni(url, digest.hexdigest(), place)
                        # Writing to the disk is no load of the next turn. The first one warms the server's file up.
                        os.sync()
                    if turn > 0:
                        times.append(took)
        finally:
            server.kill()
            server.wait()
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    for name, times in seconds.items():
        shown = ", ".join(f"{options.mib / took:.0f}" for took in times)
        fastest = options.mib / min(times)
        print(f"{name:12} {options.mib / medians[name]:6.0f} MiB/s (median of {shown}), fastest {fastest:.0f}")
    ratio = medians["curl"] / medians["omni-weights"]
    print(f"omni-weights has {ratio:.2f} of curl's throughput, and must have {LEAST}")
    sys.exit(0 if ratio >= LEAST else 1)


if __name__ == "__main__":
    main()
