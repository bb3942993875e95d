"""A double of vLLM's server with sleep mode: `python double.py SOCKET MEBIBYTES FAULT`.

It holds to the documented interface (`--enable-sleep-mode`, VLLM_SERVER_DEV_MODE=1): `POST /sleep?level=1`,
`POST /wake_up`, `GET /is_sleeping`, `vllm:num_requests_running` in the metrics. Its memory is on the card by the driver
and leaves it with sleep, when its content is kept in host memory, as level 1 does. As the real one, it breaks when it
sleeps under a request, or gets one while it sleeps. What it says to a prompt is whether its memory is as it was.

Faults, each seen in reports about the real one: `lies` (sleep is answered, nothing is freed), `part` (a quarter is
freed), `refuses` (sleep is an error), `drowsy` (wake-up is an error), `dies` (it dies of its wake-up), `lingers` (a
request runs on for a while after its end), `none` (it cannot sleep), `keeps` (a twentieth stays on the card, as graphs
and buffers of libraries do), `again` (only the second `/sleep` frees anything), `well`.
"""

from __future__ import annotations

import ctypes
import json
import os
import socketserver
import sys
import threading
from http.server import BaseHTTPRequestHandler
from typing import Any

ADDRESS, MEBIBYTES, FAULT = sys.argv[1], int(sys.argv[2]), sys.argv[3]
SIZE = MEBIBYTES << 20
PARTS = 20
cuda = ctypes.CDLL("libcuda.so.1")
working = threading.Lock()


def call(entry: str, *arguments: Any) -> None:
    """Calls the driver."""
    code = getattr(cuda, entry)(*arguments)
    if code:
        raise MemoryError(f"{entry} answered {code}")


class Memory:
    """Memory on the card: parts of equal size, each filled with its own number."""

    def __init__(self) -> None:
        self.enter()
        self.parts: list[ctypes.c_uint64 | None] = [None] * PARTS
        self.asleep = False
        self.sleeps = 0
        self.running = 0
        self.take()

    def enter(self) -> None:
        """Makes the card's context current in this thread."""
        device, context = ctypes.c_int(), ctypes.c_void_p()
        call("cuInit", 0)
        call("cuDeviceGet", ctypes.byref(device), 0)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        call("cuCtxSetCurrent", context)

    def take(self) -> None:
        """Takes the parts that are not there, and fills them."""
        for at in range(PARTS):
            if self.parts[at] is None:
                address = ctypes.c_uint64()
                call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(SIZE // PARTS))
                call("cuMemsetD32_v2", address, ctypes.c_uint(at + 7), ctypes.c_size_t(SIZE // PARTS // 4))
                self.parts[at] = address

    def free(self, count: int) -> None:
        """Gives so many parts back."""
        for at in range(count):
            if self.parts[at] is not None:
                call("cuMemFree_v2", self.parts[at])
                self.parts[at] = None

    def is_whole(self) -> bool:
        """True if all of it is there, as it was."""
        seen = ctypes.c_uint32()
        for at, address in enumerate(self.parts):
            if address is None:
                return False
            last = ctypes.c_uint64(address.value + SIZE // PARTS - 4)
            call("cuMemcpyDtoH_v2", ctypes.byref(seen), last, ctypes.c_size_t(4))
            if seen.value != at + 7:
                return False
        return True

    def sleep(self) -> int:
        """Status of the answer to `/sleep`."""
        if self.running:
            os.abort()  # an illegal memory access
        if FAULT == "refuses":
            return 500
        self.asleep = True
        self.sleeps += 1
        freed = {"lies": 0, "part": PARTS // 4, "keeps": PARTS - 1, "again": PARTS * (self.sleeps > 1)}
        self.free(freed.get(FAULT, PARTS))
        return 200

    def wake(self) -> int:
        """Status of the answer to `/wake_up`."""
        if FAULT == "dies":
            os._exit(3)
        if FAULT == "drowsy":
            return 500
        self.take()
        self.asleep = False
        self.sleeps = 0
        return 200


class Handler(BaseHTTPRequestHandler):
    """A request."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        """Status."""
        if self.path == "/is_sleeping" and FAULT != "none":
            self.say(200, {"is_sleeping": memory.asleep})
        elif self.path == "/metrics":
            text = f'vllm:num_requests_running{{engine="0",model_name="m"}} {float(memory.running)}\n'
            self.say(200, text.encode())
        elif self.path == "/v1/models":
            self.say(200, {"data": [{"id": "/a/path"}]})
        else:
            self.say(200 if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        """Everything else."""
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or "{}")
        if self.path in ("/sleep?level=1", "/wake_up") and FAULT != "none":
            with working:
                memory.enter()
                self.say(memory.sleep() if self.path != "/wake_up" else memory.wake(), {})
        elif self.path in ("/v1/completions", "/v1/chat/completions"):
            self.generate(body)
        else:
            self.say(404, {"error": {"message": "Not Found", "code": 404}})

    def generate(self, body: dict[str, Any]) -> None:
        """An answer of one token: whether the memory is whole."""
        memory.running += 1
        with working:
            if memory.asleep:
                os.abort()
            memory.enter()
            said = "whole" if memory.is_whole() else "broken"
        if FAULT == "lingers":
            threading.Timer(0.3, self.over).start()
        else:
            self.over()
        choice = {"index": 0, "text": said, "delta": {"content": said}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1}
        answer = {"choices": [choice], "usage": usage}
        if not body.get("stream"):
            self.say(200, answer)
            return
        events = f"data: {json.dumps(answer)}\n\ndata: [DONE]\n\n".encode()
        self.say(200, events, "text/event-stream")

    def over(self) -> None:
        """The request has ended."""
        memory.running -= 1

    def say(self, status: int, value: Any, kind: str = "application/json") -> None:
        """The answer."""
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(data)
        self.close_connection = True

    def address_string(self) -> str:
        """A Unix socket has no address."""
        return "-"


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """The server."""

    daemon_threads = True
    request_queue_size = 64


if __name__ == "__main__":
    memory = Memory()
    Server(ADDRESS, Handler).serve_forever()
