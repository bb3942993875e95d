"""A program with GPU memory that runs under the shim: what a model is, to the measuring process.

Reads one command a line from standard input and answers each with one line of JSON. Started by `shim.Client`.

    allocate BYTES CHUNK   fills it on the device; answers the seconds it took
    touch                  uses everything on the device: half is read, half written; answers the seconds
    check                  whether every chunk still holds what was written
    memory                 free and total, as this process sees them
    free                   gives everything back
"""

import json
import sys
import time

from driver import CudaError, Driver

MARK = 0xA5


class Client:
    """A client that holds chunks of one size."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.chunks: list[int] = []
        self.chunk = 0

    def allocate(self, size: int, chunk: int) -> float:
        """Allocates and fills."""
        began = time.perf_counter()
        self.chunk = chunk
        for _ in range(size // chunk):
            address = self.driver.allocate(chunk)
            self.chunks.append(address)
            self.driver.fill(address, MARK, chunk)
        return time.perf_counter() - began

    def touch(self) -> float:
        """Copies chunks onto chunks: what is away comes by faults. All hold the same, so nothing changes."""
        began = time.perf_counter()
        for here, there in zip(self.chunks[::2], self.chunks[1::2], strict=False):
            self.driver.call("cuMemcpyDtoD_v2", here, there, self.chunk)
        self.driver.synchronize()
        return time.perf_counter() - began

    def check(self) -> bool:
        """Looks at the ends of every chunk."""
        ends = [(address, address + self.chunk - 64) for address in self.chunks]
        return all(self.driver.read(at, 64) == bytes([MARK]) * 64 for pair in ends for at in pair)

    def free(self) -> None:
        """Gives everything back."""
        while self.chunks:
            self.driver.free(self.chunks.pop())


def main() -> None:
    """Serves commands until the end of input."""
    client = Client()
    for line in sys.stdin:
        verb, *numbers = line.split()
        answer: dict[str, object]
        try:
            result = getattr(client if verb != "memory" else client.driver, verb)(*map(int, numbers))
            answer = {"result": result}
        except CudaError as error:
            answer = {"error": error.result, "call": error.call}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
