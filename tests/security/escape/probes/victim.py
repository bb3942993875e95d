"""A neighbour with a secret wherever a process can have one: as a model (`handle_request`), and as a plain program."""

import ctypes
import json
import os
import socket
import sys
from pathlib import Path

SECRET = os.environ["ESCAPE_SECRET"]
# Kept as long as the process.
MEMORY = ctypes.create_string_buffer(SECRET.encode())
LISTENERS = []


def listen(family, address):
    listener = socket.socket(family)
    listener.bind(address)
    listener.listen()
    LISTENERS.append(listener)
    return listener.getsockname()


def shared_segment():
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    key = 0x0E5CA9E
    number = libc.shmget(key, 4096, 0o1666)  # IPC_CREAT
    assert number != -1, os.strerror(ctypes.get_errno())
    ctypes.memmove(libc.shmat(number, None, 0), MEMORY, len(MEMORY))
    return key


def hide(folder):
    """Leaves the secret in all these places; what a probe must know to look there."""
    mark, path, name = folder / "secret", str(folder / "socket"), f"omni-escape-{os.getpid()}-{SECRET}"
    mark.write_text(SECRET)
    listen(socket.AF_UNIX, path)
    listen(socket.AF_UNIX, "\0" + name)
    return {
        "secret": SECRET,
        "process": os.getpid(),
        "address": ctypes.addressof(MEMORY),
        "descriptor": os.open(mark, os.O_RDONLY),
        "mark": str(mark),
        "path": path,
        "name": name,
        "port": listen(socket.AF_INET, ("127.0.0.1", 0))[1],
        "segment": shared_segment(),
    }


def setup(_context):
    global FACTS
    FACTS = hide(Path("/tmp"))


def handle_request(_request, _context):
    return FACTS


if __name__ == "__main__":
    print(json.dumps(hide(Path(sys.argv[1]))), flush=True)
    sys.stdin.read()
