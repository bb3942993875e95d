"""Abusive model of `abuse.py`: does the harm that its variable ABUSE names, for as long as a request asks.

Each abuse reports its work, for the table. None of them leaves anything behind: the next one of the same instance
begins from the same state. Abuses that die of it report nothing.
"""

import contextlib
import hashlib
import mmap
import os
import signal
import threading
import time

MIB = 1 << 20


def threads(end, _context):
    """64 of them, on all processors: hashing leaves the interpreter lock."""
    block = bytes(MIB)
    done = [0] * 64

    def loop(number):
        while time.monotonic() < end:
            hashlib.sha256(block).digest()
            done[number] += 1

    busy = [threading.Thread(target=loop, args=(number,)) for number in range(64)]
    for thread in busy:
        thread.start()
    for thread in busy:
        thread.join()
    return f"{sum(done)} MiB hashed in {len(busy)} threads"


def memory(end, context):
    """Takes all but a little, and reads and writes a file that does not fit beside it: every page costs another one."""
    limit = 128 * MIB
    with open("/proc/meminfo") as file:
        free = int(next(line for line in file if line.startswith("MemFree")).split()[1]) * 1024
    held = mmap.mmap(-1, max(MIB, min(free, limit) - 6 * MIB))
    for at in range(0, len(held), mmap.PAGESIZE):
        held[at] = 1
    path = os.path.join(context.cache_dir, "file")
    turns = 0
    while time.monotonic() < end:
        with open(path, "wb") as file:
            for _ in range(10):
                file.write(bytes(MIB))
        with open(path, "rb") as file:
            while file.read(MIB):
                pass
        turns += 1
    os.unlink(path)
    size = len(held) >> 20
    held.close()
    return f"{size} MiB held, 10 MiB written and read {turns} times"


def oom(_end, _context):
    """Past the limit, at once."""
    held = bytearray()
    while True:
        held += bytes(8 * MIB)


def forks(end, _context):
    """Children that fork, as many as there may be; they end when their time is over."""
    failures = made = 0
    while time.monotonic() < end:
        try:
            child = os.fork()
        except OSError:
            failures += 1
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)
            continue
        made += 1
        if not child:
            while time.monotonic() < end:
                with contextlib.suppress(OSError):
                    if not os.fork():
                        continue
            os._exit(0)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    return f"{made} children of the first process, {failures} refused"


def descriptors(end, _context):
    """Opens all there are, keeps them, and asks for more."""
    held = []
    refused = 0
    while time.monotonic() < end:
        try:
            held.append(os.open("/proc/self/stat", os.O_RDONLY))
        except OSError:
            refused += 1
            for descriptor in held[: len(held) // 2]:
                os.close(descriptor)
            del held[: len(held) // 2]
    most = len(held)
    for descriptor in held:
        os.close(descriptor)
    return f"{most} held at the end, full {refused} times"


def disk(end, context):
    """Fills its folders, with bytes and with files, and begins again."""
    full = 0
    while time.monotonic() < end:
        for folder in (context.cache_dir, "/tmp", "/dev/shm"):
            made = []
            with contextlib.suppress(OSError):
                made.append(os.path.join(folder, "large"))
                with open(made[0], "wb", buffering=0) as file:
                    while time.monotonic() < end:
                        if not file.write(bytes(MIB)):
                            break
            with contextlib.suppress(OSError):
                os.unlink(made[0])
            with contextlib.suppress(OSError):
                while time.monotonic() < end:
                    made.append(os.path.join(folder, str(len(made))))
                    os.close(os.open(made[-1], os.O_CREAT | os.O_WRONLY))
            for path in made[1:]:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            full += 1
    return f"folders filled {full} times"


def log(end, _context):
    """100 MB a second, in lines of 100 bytes."""
    lines = (b"x" * 99 + b"\n") * 10_000
    begun = time.monotonic()
    written = 0
    while (now := time.monotonic()) < end:
        if written < (now - begun) * 100e6:
            written += os.write(1, lines)
        else:
            time.sleep(0.001)
    return f"{written / 1e6 / (time.monotonic() - begun):.0f} MB/s written"


def unread(_end, _context):
    """Stops itself, so that nothing which is sent to it is ever read."""
    os.kill(os.getpid(), signal.SIGSTOP)
    return "stopped and continued"


def handle_request(request, context):
    """Does it for `seconds`."""
    seconds = request.body.json["seconds"]
    if seconds <= 0:
        return "ready"
    return globals()[os.environ["ABUSE"]](time.monotonic() + seconds, context)
