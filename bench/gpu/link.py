"""The link between host and card, without the shim: what nothing can be faster than.

Every figure is the best of several rounds in this one process. Managed memory stays below a quarter of what the card
has free.
"""

import time
from ctypes import byref, c_void_p

from driver import DEVICE_CPU, Driver
from table import GIB, Row, rate

ROUNDS = 5


def best(rounds: int, action) -> float:
    """Seconds of the fastest of several rounds."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return min(times)


def measure(driver: Driver) -> tuple[list[Row], float]:
    """The rows, and the pinned bandwidth to the device in bytes per second."""
    size = min(2 * GIB, driver.memory()[0] // 4)
    pinned = c_void_p()
    driver.call("cuMemHostAlloc", byref(pinned), size, 0)
    card = driver.allocate(size)

    def up() -> None:
        driver.call("cuMemcpyHtoDAsync_v2", card, pinned, size, None)
        driver.synchronize()

    def down() -> None:
        driver.call("cuMemcpyDtoHAsync_v2", pinned, card, size, None)
        driver.synchronize()

    copied_in, copied_out = best(ROUNDS, up), best(ROUNDS, down)
    driver.call("cuMemFreeHost", pinned)

    managed = driver.allocate_managed(size)
    driver.fill(managed, 1, size)
    moved_in, moved_out, faulted = [], [], []

    def move(device: int) -> float:
        began = time.perf_counter()
        driver.prefetch(managed, size, device)
        driver.synchronize()
        return time.perf_counter() - began

    for _ in range(ROUNDS):
        moved_out.append(move(DEVICE_CPU))
        moved_in.append(move(driver.device))
        move(DEVICE_CPU)
        began = time.perf_counter()
        driver.call("cuMemcpyDtoD_v2", card, managed, size)
        driver.synchronize()
        faulted.append(time.perf_counter() - began)
    driver.free(managed)
    driver.free(card)

    fetched, evicted, fault = min(moved_in), min(moved_out), min(faulted)
    share_in, share_out = copied_in / fetched, copied_out / evicted
    rows = [
        Row("pinned copy to the device", rate(size, copied_in)),
        Row("pinned copy to the host", rate(size, copied_out)),
        Row("prefetch to the device", rate(size, fetched), ">= 0.90 of pinned copy", share_in >= 0.9),
        Row("prefetch to the host", rate(size, evicted), ">= 0.90 of pinned copy", share_out >= 0.9),
        Row("device reads what is on the host (faults)", rate(size, fault)),
    ]
    return rows, size / copied_in
