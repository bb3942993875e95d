"""A double of a server with the OpenAI API, for tests: `python openai_double.py SOCKET-OR-PORT`.

It answers as its request says: the last message, or the prompt, is JSON with the script of the answer.

    events    the events of the stream, as they are to be sent; between two that are numbers it waits so many seconds
    times     how often the first of them is sent
    status    another status, with `body` as its JSON
    raw       bytes of the whole response, as text of latin-1
    die       exit code, or the name of a signal

What it was asked is written to the file `asked` in its directory, a line of JSON for each request. A request whose
client has closed the connection adds `{"gone": path}`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import struct
import sys
import time
from typing import Any

LOG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "asked")
STARTED = time.monotonic()


def note(value: Any) -> None:
    with open(LOG, "a", encoding="utf-8") as file:
        file.write(json.dumps(value) + "\n")


class Double:
    """The server."""

    asleep = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, path, _ = head.split(b"\r\n")[0].decode().split(" ")
        length = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        body = json.loads(await reader.readexactly(length[0])) if length and length[0] else {}
        if path not in ("/health", "/metrics"):
            note({"method": method, "path": path, "body": body})
        try:
            await self.answer(path, body, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            note({"gone": path})
        writer.close()

    async def answer(self, path: str, body: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if path in ("/sleep?level=1", "/wake_up"):
            self.asleep = path != "/wake_up"
            self.whole(writer, int(os.environ.get("DOUBLE_SLEEPS", "200")), {})
        elif path == "/is_sleeping":
            self.whole(writer, 200, {"is_sleeping": self.asleep})
        elif body.get("prompt") == "a":
            self.whole(writer, 500 if self.asleep else 200, {})
        elif path in ("/v1/chat/completions", "/v1/completions"):
            text = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
            await self.play(json.loads(text), path, reader, writer)
        elif path == "/v1/embeddings":
            rows = [struct.pack("<2f", at, 0.5) for at in range(len(body["input"]))]
            data = [{"index": at, "embedding": base64.b64encode(row).decode()} for at, row in enumerate(rows)]
            self.whole(writer, 200, {"data": data[::-1], "usage": {"prompt_tokens": 3}})
        elif path == "/v1/rerank":
            rows = [{"index": at, "relevance_score": len(text)} for at, text in enumerate(body["documents"])]
            self.whole(writer, 200, {"results": rows[::-1], "usage": {"prompt_tokens": 5}})
        elif path == "/v1/models":
            self.whole(writer, 200, {"object": "list", "data": [{"id": "/served/by-its-own-name"}]})
        elif path == "/tokenize":
            self.whole(writer, 200, {"count": len(body.get("prompt") or json.dumps(body["messages"]))})
        elif path == "/health":
            loads = time.monotonic() < STARTED + float(os.environ.get("DOUBLE_LOADS", "0"))
            self.whole(writer, 503 if loads else 200, {"status": "ok"})
        elif path == "/metrics":
            writer.write(METRICS.replace(b"RUNNING", os.environ.get("DOUBLE_RUNNING", "2.0").encode()))
        else:
            self.whole(writer, 404, {"error": {"message": "File Not Found", "type": "not_found_error", "code": 404}})

    async def play(self, script: Any, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if "die" in script:
            if isinstance(script["die"], int):
                os._exit(script["die"])
            os.kill(os.getpid(), getattr(signal, script["die"]))
        if "raw" in script:
            writer.write(script["raw"].encode("latin-1"))
        elif "status" in script:
            self.whole(writer, script["status"], script["body"])
        else:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            gone = asyncio.ensure_future(reader.read())
            first = script["events"][:1] * (script.get("times", 1) - 1)
            for event in first + script["events"]:
                if isinstance(event, (int, float)):
                    await asyncio.wait([gone], timeout=event)
                    if gone.done():
                        raise ConnectionError
                    continue
                data = f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()
                writer.write(b"%x\r\n%b\r\n" % (len(data), data))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            gone.cancel()

    def whole(self, writer: asyncio.StreamWriter, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)


METRICS = b"""HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n# HELP vllm:num_requests_running Running requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="/served/by-its-own-name"} RUNNING
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{model_name="/served/by-its-own-name"} 41.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} 1.0
vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} 3.0
vllm:time_to_first_token_seconds_sum{model_name="m"} 0.75
vllm:time_to_first_token_seconds_count{model_name="m"} 3.0
# TYPE python_gc_objects counter
python_gc_objects 7
"""


async def main(address: str) -> None:
    double = Double()
    if address.isdigit():
        server = await asyncio.start_server(double.serve, "127.0.0.1", int(address))
    else:
        server = await asyncio.start_unix_server(double.serve, address)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
