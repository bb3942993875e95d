"""In the guest: how a node is asked, and what the kernel has of it. Called by the jobs in this folder.

A node has its default folders and addresses. Few modules are imported: emulated, each takes its time.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

MODELS = Path("/srv/models")
CGROUP = Path("/sys/fs/cgroup/omni")
SCOPES = Path("/sys/fs/cgroup/omni.slice/omni-models.slice")
PROGRAMS = ("omni-scheduler", "omni-launcher", "omni-worker")
# Long: the processors may be wanted for more than guests.
PATIENCE = 120.0
# Tells what it sees of its memory, while it holds as many MiB as is asked for.
EATS = """
def handle_request(request, context):
    eaten = bytearray(b"x") * (request.body.json << 20)
    with open("/proc/meminfo") as lines:
        return {line.split(":")[0]: int(line.split()[1]) for line in lines}
"""
LIMIT_KB = 128 << 10
# The guest's only Python, which is another one in each, and less memory than a model has by default.
MANIFEST = f"""
[runtime]
python = "{sys.version_info.major}.{sys.version_info.minor}"
[resources]
memory = "{LIMIT_KB}KiB"
"""
Found = TypeVar("Found")


def wait_for(what: str, look: Callable[[], Found]) -> Found:
    """Waits until `look` returns a true value, and returns that."""
    end = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < end, f"waited {PATIENCE} s for {what}"
        time.sleep(0.05)
    return found


def publish(model: str, code: str, resources: str = "") -> None:
    """Puts a model of one file into the models folder, by rename as authors do; with more lines of its manifest."""
    draft, place = MODELS / f".{model}", MODELS / model
    draft.mkdir(parents=True)
    (draft / "model.py").write_text(code)
    (draft / "omni.toml").write_text(MANIFEST + resources)
    draft.rename(place)


def http(port: int, request: str, body: bytes = b"") -> tuple[int, bytes]:
    """Status and body of an answer; 0 and the reason when there is none, as without a listener."""
    head = f"{request} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    try:
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as connection:
            connection.sendall(head.encode() + body)
            head, _, answer = connection.makefile("rb").read().partition(b"\r\n\r\n")
    except OSError as error:
        return 0, repr(error).encode()
    version, _, status = head.partition(b"\r\n")[0].partition(b" ")
    if not version.startswith(b"HTTP/") or not status[:3].isdigit():
        return 0, b"no status line: %r" % head
    return int(status[:3]), answer


def is_ready() -> bool:
    """True once the node serves, and has seen all models."""
    return http(9090, "GET /readyz")[0] == 200


def ask(model: str, body: object) -> tuple[int, Any]:
    """The status of a model's answer, and its result; of another one than 200 the text."""
    status, answer = http(8080, f"POST /ai/run/{model}", json.dumps(body).encode())
    return status, json.loads(answer)["result"] if status == 200 else answer.decode()


def status(model: str) -> dict[str, Any]:
    """Status of a model, by omnictl."""
    command = ["omnictl", "-o", "json", "status", model]
    return json.loads(subprocess.run(command, capture_output=True, check=False).stdout)


def engine(model: str) -> int:
    """The process id of a model's only instance."""
    (instance,) = status(model)["instances"]
    return instance["pid"]


def await_death(model: str) -> str:
    """Waits until a model that has died once is back, and says of what it died."""
    wait_for("the death to be seen", lambda: status(model)["restarts"] == 1)
    return wait_for("the next instance", lambda: (now := status(model))["state"] == "ready" and now["last_exit"])


def parent(pid: int) -> int:
    """The parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def group(pid: int) -> Path:
    """The control group of a process."""
    return Path("/sys/fs/cgroup", Path(f"/proc/{pid}/cgroup").read_text().strip().removeprefix("0::/"))


def leftovers() -> Iterator[str]:
    """Resources of a node by the kernel: processes, mounts, control groups, loop devices."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            program, place = os.readlink(process / "exe"), group(int(process.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
        if os.path.basename(program) in PROGRAMS or place.is_relative_to(CGROUP) or place.is_relative_to(SCOPES):
            yield f"process {process.name}: {program} in {place}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if "omni" in line:
            yield f"mount: {line}"
    for place in (CGROUP, SCOPES):
        if place.exists():
            yield f"control group: {place}"
    listed = ["systemctl", "list-units", "--all", "--plain", "--no-legend", "omni-*.scope", "omni-models.slice"]
    for unit in subprocess.run(listed, capture_output=True, text=True, check=False).stdout.splitlines():
        if " active " in unit or " failed " in unit:
            yield f"unit: {unit}"
    for device in Path("/sys/block").glob("loop*/loop/backing_file"):
        yield f"loop device: {device.read_text().strip()}"
