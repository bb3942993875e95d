"""A model that wakes: all its memory is on the host, and its next request needs it on the card. Under the shim."""

from pathlib import Path

import shim
from driver import Driver
from table import GIB, MIB, Row, rate

ROUNDS = 3
# Time limit for 5 GiB over a PCIe 5 x16 link.
WAKE_5_GIB = 0.130


def measure(driver: Driver, library: Path) -> list[Row]:
    """Rows for 1 and 5 GiB, as far as a quarter of the card holds them."""
    rows = []
    for gib in (1, 5):
        if gib * GIB > driver.memory()[0] // 4:
            rows.append(Row(f"wake of {gib} GiB", "left out: the card has too little free"))
            continue
        rows += wake(library, gib)
    return rows


def wake(library: Path, gib: int) -> list[Row]:
    """Moves a client away and back several times."""
    size = gib * GIB
    restored, evicted, faulted = [], [], []
    with shim.client(library, size + 64 * MIB) as client:
        client.ask(f"allocate {size} {64 * MIB}")
        for _ in range(ROUNDS):
            out = client.order(shim.EVICT, shim.EVERYTHING)
            back = client.order(shim.RESTORE)
            if out.moved != size or back.moved != size or out.error or back.error:
                raise RuntimeError(f"not all of it was moved: {out}, {back}")
            evicted.append(out.seconds)
            restored.append(back.seconds)
            client.order(shim.EVICT, shim.EVERYTHING)
            faulted.append(float(str(client.ask("touch"))))
            client.order(shim.RESTORE)  # the shim does not see what comes back by faults
        if client.ask("check") is not True:
            raise RuntimeError("the data is not what it was")
    best, fault = min(restored), min(faulted)
    goal = (f"<= {WAKE_5_GIB * 1e3:.0f} ms on PCIe 5", best <= WAKE_5_GIB) if gib == 5 else ("", None)
    return [
        Row(f"wake of {gib} GiB in bulk", f"{best * 1e3:.0f} ms, {rate(size, best)}", *goal),
        Row(f"eviction of {gib} GiB", f"{min(evicted) * 1e3:.0f} ms, {rate(size, min(evicted))}"),
        Row(f"wake of {gib} GiB by faults", f"{fault * 1e3:.0f} ms", "bulk >= 2x faster", fault >= 2 * best),
    ]
