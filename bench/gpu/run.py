#!/usr/bin/env python3
"""Measures over-commit of GPU memory on this machine's card: one table. `make gpu-test`, or `gpu-test` of the bundle.

Usage: run.py [--only link,wake,fits,story,thirteen] [--simulated]

Needs an interpreter (PyTorch for `fits`) and nothing else: no network, no compiler. Managed memory in total stays
below what the card has free, always. `--simulated` uses the simulated driver of the tests instead of a card: it shows
that the scenarios work; its times are settings of the simulator, and say nothing about any GPU.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import fits  # noqa: E402  the benchmarks' folder comes first
import link  # noqa: E402
import over_commit  # noqa: E402
import wake  # noqa: E402
from driver import ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, Driver  # noqa: E402
from node import BIN  # noqa: E402
from table import GIB, Row, show  # noqa: E402

SCENARIOS = ["link", "wake", "fits", "story", "thirteen"]


def simulate() -> None:
    """Starts this program again on the simulated driver, with a card that lasts as long as it runs."""
    with tempfile.TemporaryDirectory(prefix="omni-card-") as folder:
        Path(folder).chmod(0o755)
        card = [BIN / "cuda-sim-card", "create", folder, "--memory", "20GiB", "--driver", "13.0"]
        subprocess.run([*card, "--bandwidth", "50GiB", "--fault-bandwidth", "10GiB"], check=True)
        environment = {**os.environ, "OMNI_CUDA_SIM": folder, "LD_LIBRARY_PATH": str(BIN / "cuda-sim")}
        arguments = [argument for argument in sys.argv if argument != "--simulated"]
        sys.exit(subprocess.run([sys.executable, *arguments], env=environment, check=False).returncode)


def main() -> int:
    """Runs the scenarios; 1 when a goal was not reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SCENARIOS), help="some of: %(default)s")
    parser.add_argument("--simulated", action="store_true", help="on the simulated driver")
    chosen = parser.parse_args()
    if chosen.simulated:
        simulate()
    only = chosen.only.split(",")
    if unknown := set(only) - set(SCENARIOS):
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    shim = BIN / "libomni_cuda.so"
    driver = Driver()
    free, total = driver.memory()
    simulated = os.environ.get("OMNI_CUDA_SIM")
    print(f"{driver.name()}, {free / GIB:.1f} of {total / GIB:.1f} GiB free, CUDA {driver.version()}")
    if simulated:
        print("SIMULATED: the times below are the simulator's settings, not a GPU's")
    if not driver.attribute(ATTRIBUTE_CONCURRENT_MANAGED_ACCESS):
        print("this card has no concurrent managed access: unified mode is refused on it")
        return 1
    rows: list[Row] = []

    def add(more: list[Row]) -> None:
        # Times of the simulator are set by its options and are not judged.
        more = [Row(row.what, row.figure) for row in more] if simulated else more
        show(more)
        rows.extend(more)

    if "link" in only:
        add(link.measure(driver)[0])
    if "wake" in only:
        add(wake.measure(driver, shim))
    if "fits" in only:
        add(fits.measure(shim))
    reason = over_commit.left_out()
    extra = f'driver-dir = "{BIN / "cuda-sim"}"\ndevice-dir = "{simulated}"\n' if simulated else ""
    for name, scenario in [("story", over_commit.story), ("thirteen", over_commit.thirteen)]:
        if name in only:
            add([Row(name, reason)] if reason else scenario(driver, extra))
    return 1 if any(row.reached is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
