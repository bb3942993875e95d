"""Shows the memory this model sees, and eats some of it on request.

Input:  {"eat_mib": 100}           optional: hold 100 MiB while looking, and give them back
Answer: {"meminfo": {"MemTotal": 7340032, ...}, "psutil": {"total": ..., "available": ...}, "eaten_mib": 100}
        meminfo in kB as the kernel writes it, psutil in bytes.

`memory` in omni.toml is shown by /proc/meminfo in here, and enforced by the kernel: a request for more than that
ends this process, its request is answered 502, and the next request is served by a new one.
"""

import psutil
from omni import Response

MIB = 1024 * 1024
PAGE = 4096


def handle_request(request, context):
    args = request.body.json if request.body.bytes else {}
    wanted = args.get("eat_mib", 0) if isinstance(args, dict) else None
    if type(wanted) is not int or wanted < 0:
        return Response.error(400, '"eat_mib" must be a whole number of MiB')
    eaten = eat(wanted)
    seen = psutil.virtual_memory()
    return {
        "meminfo": meminfo(),
        "psutil": {"total": seen.total, "available": seen.available},
        "eaten_mib": len(eaten) // MIB,
    }


def eat(mib):
    """Memory that is really there: a page counts only when it has been written to."""
    block = bytearray(mib * MIB)
    for page in range(0, len(block), PAGE):
        block[page] = 1
    return block


def meminfo():
    with open("/proc/meminfo", encoding="ascii") as lines:
        pairs = (line.split(":", 1) for line in lines)
        return {name: int(value.split()[0]) for name, value in pairs}
