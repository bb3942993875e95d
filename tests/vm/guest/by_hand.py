"""In the guest: a node that root starts by hand, as the operators' page says, under systemd and cgroup v2.

Called by `../test_vm.py` as `by_hand.py JOB`, each function in a fresh guest: a failed assertion is the exit status.
Whatever a job found, it ends with a node that is stopped and leaves nothing.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from client import (
    EATS,
    LIMIT_KB,
    MANIFEST,
    MODELS,
    PATIENCE,
    ask,
    await_death,
    engine,
    group,
    is_ready,
    leftovers,
    parent,
    publish,
    status,
    wait_for,
)

JOB = Path("/job")
LOG = Path("/var/log/omni")


class Node:
    """A node of the job's programs, started by a command with these words in front."""

    def __init__(self, *inside: str) -> None:
        self.inside = inside

    def __enter__(self) -> Node:
        self.start()
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        try:
            if not failed:
                self.stop()
        except BaseException as error:
            failed = error
            raise
        finally:
            if failed:
                print("--- log", LOG.read_text(), "--- there", *leftovers(), sep="\n")

    def start(self) -> None:
        """Starts the scheduler, and returns when it has seen all models."""
        with LOG.open("a") as log:
            command = [*self.inside, "omni-scheduler", "--models", MODELS]
            self.scheduler = subprocess.Popen(command, stdout=log, stderr=log)
        wait_for("the node to be ready", lambda: self.scheduler.poll() is not None or is_ready())
        assert self.scheduler.poll() is None, f"the node ended with {self.scheduler.returncode}"

    def kill(self) -> None:
        """Ends the scheduler as a crash does."""
        self.scheduler.kill()
        self.scheduler.wait()

    def stop(self) -> None:
        """Ends the node as an operator does, and sees that nothing is left of it."""
        self.scheduler.terminate()
        assert self.scheduler.wait(PATIENCE) == 0
        # The kernel takes processes apart a moment after they have ended.
        wait_for("nothing to be left", lambda: not [*leftovers()])


def sees_its_limit() -> None:
    """A model's /proc/meminfo and the kernel's limit are what the manifest says, also after systemd set up its own."""
    publish("eats", EATS)
    with Node():
        answered, seen = ask("eats", 64)
        assert answered == 200, seen
        assert seen["MemTotal"] == LIMIT_KB, seen
        assert seen["MemFree"] <= LIMIT_KB - (64 << 10), "what it holds is not free"
        # systemd knows nothing of the node's groups: it must not take their controllers away.
        subprocess.run(["systemctl", "daemon-reload"], check=True)
        place = group(engine("eats"))
        limits = {"memory.max": f"{LIMIT_KB << 10}", "memory.swap.max": "0", "cpu.max": "200000 100000"}
        assert {name: (place / name).read_text().strip() for name in limits} == limits


def comes_back_after_oom() -> None:
    """A model that eats past its limit is ended for that, and comes back by itself."""
    publish("eats", EATS)
    with Node():
        answered, text = ask("eats", 256)
        assert answered == 502, text
        assert await_death("eats") == "killed for exceeding its memory limit"
        assert ask("eats", 0)[0] == 200


def survives_its_scheduler() -> None:
    """A scheduler that is killed and started again finds the model's process as it was."""
    publish("eats", EATS)
    with Node() as node:
        assert ask("eats", 0)[0] == 200
        before = engine("eats")
        node.kill()
        node.start()
        assert ask("eats", 0)[0] == 200
        assert (engine("eats"), status("eats")["restarts"]) == (before, 0)


def comes_back_without_its_worker() -> None:
    """A worker that is killed takes its model along, which comes back by itself."""
    publish("eats", EATS)
    with Node():
        assert ask("eats", 0)[0] == 200
        before = engine("eats")
        os.kill(parent(parent(before)), signal.SIGKILL)
        assert await_death("eats") == "lost together with its worker"
        assert ask("eats", 0)[0] == 200
        assert not Path(f"/proc/{before}").exists()


def serves_where_the_root_is_not_empty() -> None:
    """In a control group namespace, as an engine makes one: its root is a group that has the first processes in it."""
    publish("eats", EATS)
    box = Path("/sys/fs/cgroup/box")
    box.mkdir()
    Path("/sys/fs/cgroup/cgroup.subtree_control").write_text("+cpu +cpuset +memory +pids")
    join = f'echo $$ > {box}/cgroup.procs && exec unshare --cgroup --mount "$@"'
    mount = 'umount /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec "$@"'
    with Node("sh", "-c", join, "sh", "sh", "-c", mount, "sh") as node:
        answered, seen = ask("eats", 64)
        assert answered == 200, seen
        place = group(engine("eats"))
        assert place.is_relative_to(box / "omni"), place
        assert (place / "memory.max").read_text().strip() == f"{LIMIT_KB << 10}"
        assert f"{node.scheduler.pid}" in (box / "init/cgroup.procs").read_text().split()
    assert not (box / "omni").exists()


def serves_the_seed() -> None:
    """The model of the README, with an environment built from a package index."""
    MODELS.mkdir()
    subprocess.run(["cp", "-r", JOB / "cowsay", MODELS], check=True)
    (MODELS / "cowsay/omni.toml").write_text(MANIFEST)
    Path("/etc/omni").mkdir()
    Path("/etc/omni/omni.toml").write_text('[python]\nindex-url = "http://127.0.0.1:8000"\n')
    listener = socket.create_server(("127.0.0.1", 8000))
    threading.Thread(target=be_index, args=(listener, *JOB.glob("*.whl")), daemon=True).start()
    with Node():
        answered, cow = ask("cowsay", {"text": "hi"})
        assert answered == 200, cow
        assert "| hi |" in cow and "(oo)" in cow


def be_index(listener: socket.socket, wheel: Path) -> None:
    """A package index of one wheel: every page has a link to it."""
    page = f'<a href="/{wheel.name}">{wheel.name}</a>'.encode()
    while True:
        with listener.accept()[0] as connection:
            method, path, *_ = connection.recv(1 << 16).split()
            body = wheel.read_bytes() if path.endswith(b".whl") else page
            head = f"HTTP/1.0 200 OK\r\ncontent-type: text/html\r\ncontent-length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + (b"" if method == b"HEAD" else body))


if __name__ == "__main__":
    os.environ["PATH"] = f"{JOB}/bin:{os.environ['PATH']}"
    globals()[sys.argv[1]]()
