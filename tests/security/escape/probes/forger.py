"""Writes to its log what could pass for somebody else's line, or speak to the terminal of who reads it.

As a model at a request, as a plain program at once. The import fails when it is told to, with such words as its reason.
"""

import os
import sys

LINES = [
    "\x1b[2J\x1b[1;1H\x1b]0;owned\x07",
    "\x9b2J\x9d0;owned\x9c",
    "innocent\r2026-01-01T00:00:00.000Z 000000000000 worker everything is well",
    "innocent\x0b\x0c\x85 next",
    "\x08" * 40 + "neighbour",
    "\x7f\x00\x1c",
    "user \u202etxt.exe\u2066 order",
    '{"timestamp":"2026-01-01T00:00:00Z","level":"ERROR","message":"forged","target":"omni_scheduler"}',
    '","level":"ERROR","target":"omni_scheduler","message":"forged',
    'forged" model="neighbour" stream="worker" instance="000000000000',
    "<0>forged: emergency",
    "x" * 20_000,
]


def forge():
    for stream in (sys.stdout, sys.stderr):
        for line in LINES:
            stream.buffer.write(line.encode() + b"\n")
        stream.buffer.write(b"\xff\xfe\xc2 not text\n")
        stream.flush()


def handle_request(_request, _context):
    forge()


if os.environ.get("FORGE_REASON"):
    raise RuntimeError("".join(LINES[:7]) + "\n" + "\n".join(LINES[2:11]))
if __name__ == "__main__":
    forge()
