"""The model of the node scenarios: as much GPU memory as its manifest says, all of it used by every request.

Its directory also holds `driver.py`. A request answers how long its work took and whether all data was whole.
"""

import os
import time

from driver import Driver

CHUNK = 64 << 20
MARK = 0x5A

_driver: Driver | None = None
_chunks: list[int] = []


def setup(context):
    """Allocates and fills, as loading weights would."""
    global _driver
    _driver = Driver()
    for _ in range(int(os.environ["WEIGHTS_MIB"]) // 64):
        address = _driver.allocate(CHUNK)
        _driver.fill(address, MARK, CHUNK)
        _chunks.append(address)


def handle_request(request, context):
    """Uses every chunk on the device and looks at one byte range of each."""
    began = time.perf_counter()
    for here, there in zip(_chunks[::2], _chunks[1::2], strict=False):
        _driver.call("cuMemcpyDtoD_v2", here, there, CHUNK)
    _driver.synchronize()
    seconds = time.perf_counter() - began
    whole = all(_driver.read(address + CHUNK // 2, 64) == bytes([MARK]) * 64 for address in _chunks)
    return {"seconds": seconds, "whole": whole, "card": _driver.memory()[1]}
