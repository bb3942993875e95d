"""A model that turns on the node by its data connection and its answers, as a request says: what `hostile.py` serves.

The frames are written past the engine, onto its socket, as a model's native code could.
"""

import logging
import os
import socket
import struct
import sys
import time

USAGE, RESPONSE, JSON = 21, 16, 0
HEADER = struct.Struct("<IBBHQ")


def data():
    """The engine's data connection: the one stream socket of the process."""
    for name in os.listdir("/proc/self/fd"):
        try:
            found = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        if found.type & 0xF == socket.SOCK_STREAM:
            return found
        found.close()
    raise LookupError("no data connection")


def number():
    """The request's number on the wire, found in the engine's own frames."""
    frame = sys._getframe()
    while "number" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["number"]


def usage(end, _asked):
    """Frames of usage without end."""
    payload = b'{"a": 1}'
    frames = (HEADER.pack(len(payload), USAGE, 0, 0, number()) + payload) * 1000
    connection = data()
    while time.monotonic() < end:
        connection.sendall(frames)


def partial(end, _asked):
    """An answer of 16 MiB that lacks its last byte."""
    length = 16 << 20
    data().sendall(HEADER.pack(length, RESPONSE, JSON, 200, number()) + bytes(length - 1))
    time.sleep(max(0.0, end - time.monotonic()))


def pieces(end, _asked):
    """A stream of pieces of one byte."""
    while time.monotonic() < end:
        yield b"x"


def log(end, _asked):
    """Lines of the log as fast as they go."""
    logger = logging.getLogger("flood")
    while time.monotonic() < end:
        logger.warning("x" * 200)


def stuck(end, _asked):
    """A handler that knows of no cancellation."""
    while (left := end - time.monotonic()) > 0:
        try:
            time.sleep(left)
        except BaseException:
            continue


def large(_end, asked):
    """An answer of that many bytes."""
    return bytes(asked["bytes"])


def work(_end, _asked):
    """Work for a polite client."""
    return None


def handle_request(request, context):
    """Does what is asked for, for `seconds`."""
    asked = request.body.json
    return globals()[asked["how"]](time.monotonic() + asked.get("seconds", 0), asked)
