"""Cost of the shim for a model that fits: PyTorch, the same work with and without it, in turns.

Each process runs the same script: matrix products and element-wise passes over memory of PyTorch's own caching
allocator, with allocations of changing size in between. The figure is the ratio of the medians.
"""

import json
import os
import statistics
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from table import Row

TURNS = 5
WORK = """
import json, time, torch
torch.manual_seed(0)
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
b = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
big = torch.randn(256 << 20, device="cuda")
def step(n):
    c = a @ b
    x = torch.empty((n % 7 + 1) << 20, device="cuda").fill_(1.0)
    big.mul_(1.0000001).add_(x[0])
    return c
for n in range(20):
    step(n)
torch.cuda.synchronize()
began = time.perf_counter()
for n in range(200):
    step(n)
torch.cuda.synchronize()
print(json.dumps([time.perf_counter() - began, torch.cuda.mem_get_info()[1]]))
"""


def run(library: Path | None, limit: int) -> float:
    """Seconds of one process's work; checks that the shim was there, or was not."""
    environment = dict(os.environ)
    if library is not None:
        environment |= {
            "LD_PRELOAD": str(library),
            "OMNI_GPU_LIMIT_BYTES": str(limit),
            "OMNI_GPU_MODE": "unified",
        }
    done = subprocess.run(
        [sys.executable, "-c", WORK], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode:
        raise RuntimeError(f"PyTorch ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    seconds, card = json.loads(done.stdout.splitlines()[-1])
    if (card == limit) != (library is not None):
        raise RuntimeError(f"PyTorch sees a card of {card} bytes; the limit is {limit}")
    return float(seconds)


def measure(library: Path) -> list[Row]:
    """A row of the table; without PyTorch the reason."""
    if find_spec("torch") is None:
        return [Row("slowdown of a model that fits", "left out: this interpreter has no PyTorch")]
    limit = 8 << 30
    plain, shimmed = [], []
    for _ in range(TURNS):
        plain.append(run(None, limit))
        shimmed.append(run(library, limit))
    loss = statistics.median(shimmed) / statistics.median(plain) - 1
    words = f"{loss * 100:+.2f} % (spread {min(plain):.3f} to {max(plain):.3f} s)"
    return [Row(f"slowdown of a model that fits, PyTorch {version('torch')}", words, "< 1 %", loss < 0.01)]
