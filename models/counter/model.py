"""Counts aloud, one event per number: the smallest stream.

Input:  {"to": 10, "ms": 100}      count to 10, 100 ms apart (defaults: 10 and 0)
Answer: server-sent events {"count": 1} ... {"count": 10}, then [DONE].

An async generator: one process counts for many clients at once (`concurrency` in omni.toml), and a client that hangs up
ends its own count at the next `await`.
"""

import asyncio

from omni import errors

MOST = 100_000
LONGEST_MS = 60_000


async def handle_request(request, context):
    args = request.body.json
    to = whole_number(args, "to", 10, MOST)
    pause = whole_number(args, "ms", 0, LONGEST_MS) / 1000
    for count in range(1, to + 1):
        yield {"count": count}
        if count < to:
            await asyncio.sleep(pause)


def whole_number(args, name, default, most):
    """`args[name]`, checked before the first event is sent: afterwards the status can no longer say 400."""
    value = args.get(name, default) if isinstance(args, dict) else None
    if type(value) is not int or not 0 <= value <= most:
        raise errors.BadRequest(f'"{name}" must be a whole number from 0 to {most}')
    return value
