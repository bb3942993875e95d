#!/usr/bin/env python3
"""Cost of traces: processor time of the scheduler for a request, and requests per second, by what of them is recorded.

Usage: traces.py [--rounds N] [SETTING ...]     (as root, after `make build`)

Nodes with different settings of `[tracing]` run side by side, and are asked in turn, in windows of a second; printed
are medians. The collector is a process of its own, which reads deliveries and acknowledges them. Load by `wrk` (Debian
package), 32 connections to a model that answers with its request. Programs without traces are measured with OMNI_BIN
and the setting `none`.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import multiprocessing
import re
import statistics
import subprocess
import tempfile

from node import Node, processor
from report import machine, row, spread

ECHO = "def handle_request(request, context):\n    return request.body.json\n"
MANIFEST = "schema = 1\n[scaling]\nqueue = 1000\n"
CONNECTIONS = 32
#: A collector that is not there.
AWAY = "http://127.0.0.1:9"
SETTINGS = {
    "none": "",
    "sample = 0": "[tracing]\nendpoint = {url}\nsample = 0\n",
    "sample = 0.01": "[tracing]\nendpoint = {url}\nsample = 0.01\n",
    "sample = 1": "[tracing]\nendpoint = {url}\nsample = 1\n",
    "sample = 1, collector away": f'[tracing]\nendpoint = "{AWAY}"\nsample = 1\n',
}


class Collector(http.server.BaseHTTPRequestHandler):
    """Acknowledges every delivery."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Nothing."""


def collect(server: http.server.HTTPServer) -> None:
    server.serve_forever()


def window(node: Node, script: str, seconds: int) -> tuple[float, float]:
    """Microseconds of the scheduler's processor time for a request, and requests per second."""
    url = f"http://{node.address[0]}:{node.address[1]}/ai/run/echo"
    before = processor(node.pid)
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-s", script, url]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    spent = processor(node.pid) - before
    if "Non-2xx" in said:
        raise SystemExit(said)
    count = int(re.search(r"(\d+) requests in", said)[1])
    return spent / count * 1e6, count / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*", default=list(SETTINGS), metavar="SETTING")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=int, default=1)
    options = parser.parse_args()
    machine()
    server = http.server.HTTPServer(("127.0.0.1", 0), Collector)
    collector = multiprocessing.Process(target=collect, args=(server,), daemon=True)
    collector.start()
    url = f'"http://127.0.0.1:{server.server_address[1]}"'
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in options.settings}
    with contextlib.ExitStack() as stack:
        script = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".lua"))
        script.write("wrk.method = 'POST'\nwrk.headers['content-type'] = 'application/json'\nwrk.body = '{\"a\": 1}'\n")
        script.flush()
        nodes = {}
        for name in options.settings:
            model = {"echo": {"model.py": ECHO, "omni.toml": MANIFEST}}
            nodes[name] = stack.enter_context(Node(model, config=SETTINGS[name].replace("{url}", url)))
            nodes[name].wake("echo", {})
            window(nodes[name], script.name, options.seconds)
        for _ in range(options.rounds):
            for name, node in nodes.items():
                found[name].append(window(node, script.name, options.seconds))
    collector.terminate()
    collector.join()
    for name, windows in found.items():
        row(f"{name}: scheduler, µs", spread([spent for spent, _ in windows]))
        row(f"{name}: requests a second", f"{statistics.median(rate for _, rate in windows):,.0f}")


if __name__ == "__main__":
    main()
