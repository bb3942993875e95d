"""Node of release programs in a separate folder, for the benchmarks to start, query and stop.

Takes the programs of `make build`, or of the folder OMNI_BIN. A node that misbehaves ends the benchmark.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(os.environ.get("OMNI_BIN", ROOT / "target/release"))
TICKS = os.sysconf("SC_CLK_TCK")

# A benchmark that is told to end leaves its `with` blocks, which end what it has started.
signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))


class Node:
    """A node of release programs in a separate folder."""

    def __init__(
        self,
        models: dict[str, Path | dict[str, str]],
        extra: dict[str, dict[str, str]] | None = None,
        config: str = "",
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="omni-bench-")
        self.folder = folder = Path(self._temporary.name)
        folder.chmod(0o755)
        for name, source in models.items():
            target = folder / "models" / name
            target.mkdir(parents=True)
            files = (
                source
                if isinstance(source, dict)
                else {
                    file.name: file.read_text() for file in source.iterdir() if file.suffix in (".py", ".txt", ".toml")
                }
            )
            for file, text in (files | (extra or {}).get(name, {})).items():
                (target / file).write_text(text)
        self.runtime = Path("/run") / folder.name
        (folder / "node.toml").write_text(f'[node]\ncgroup-parent = "{folder.name}"\n{config}')
        self._log = folder / "log"
        command: list[str | Path] = [
            BIN / "omni-scheduler",
            "--config",
            folder / "node.toml",
            "--models",
            folder / "models",
        ]
        command += ["--state-dir", folder / "state", "--cache-dir", folder / "cache", "--runtime-dir", self.runtime]
        command += ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.pid = self.process.pid
        try:
            until("the node", (self.runtime / "node.json").exists)
            said = json.loads((self.runtime / "node.json").read_text())
            host, port = said["listen"].rsplit(":", 1)
            self.address = (host, int(port))
            until("its models", lambda: len(self.ctl("list").get("models", ())) == len(models))
        except BaseException:
            print(self._log.read_text(), file=sys.stderr)
            self.__exit__()
            raise

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None or self.pid != self.process.pid:
            os.kill(self.pid, signal.SIGTERM)
        if self.process.wait(60):
            sys.exit(f"the node ended badly\n{self._log.read_text()}")
        until("the node to end", lambda: not is_alive(self.pid))
        if self.runtime.exists():
            for left in self.runtime.iterdir():
                left.rmdir() if left.is_dir() else left.unlink()
            self.runtime.rmdir()
        self._temporary.cleanup()

    def ctl(self, *arguments: str) -> Any:
        command: list[str | Path] = [
            BIN / "omnictl",
            "--socket",
            self.runtime / "control.sock",
            "-o",
            "json",
            *arguments,
        ]
        return json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout or "{}")

    def upgrade(self) -> None:
        """Has a new process of the scheduler's program take over, which is no child of this one."""
        said = self.ctl("upgrade")
        if "pid" not in said:
            sys.exit(f"no takeover\n{self._log.read_text()}")
        self.pid = said["pid"]

    def ask(self, model: str, body: object) -> tuple[int, float]:
        """Status, and seconds from connecting to the end of the answer."""
        begun = time.perf_counter()
        with contextlib.closing(self.connect()) as connection:
            return post(connection, model, body), time.perf_counter() - begun

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(*self.address, timeout=600)

    def publish(self, model: str, file: str, text: str) -> None:
        """Changes a file of a model's directory in one step."""
        (self.folder / "new").write_text(text)
        (self.folder / "new").replace(self.folder / "models" / model / file)

    def wake(self, model: str, body: object) -> float:
        """The first answer, whatever has to be built for it."""
        status, seconds = self.ask(model, body)
        end = time.monotonic() + 300  # for its environment
        while status == 503 and time.monotonic() < end:
            time.sleep(0.5)
            status, seconds = self.ask(model, body)
        if status != 200:
            sys.exit(f"{model} answered {status}\n{self._log.read_text()}")
        return seconds

    def await_stop(self, model: str) -> None:
        instances = self.runtime / "instances"
        until("the model to stop", lambda: not self.ctl("status", model)["instances"] and not any(instances.iterdir()))

    def states(self, model: str) -> list[str]:
        """States of its instances."""
        return [instance["state"] for instance in self.ctl("status", model)["instances"]]

    def processes(self) -> list[int]:
        """All that belongs to its models: engines, zygotes and workers."""
        return [pid for pid in processes() if f"/{self.folder.name}/" in _read(Path(f"/proc/{pid}/cgroup"))]

    def log(self) -> str:
        """Output of the node."""
        return self._log.read_text()


def processes() -> set[int]:
    """All that are there now."""
    return {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()}


def _read(path: Path) -> str:
    """A file of a process that may have ended."""
    try:
        return path.read_text()
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def status(pid: int, key: str, file: str = "status") -> float:
    """A size of /proc/PID/status, or of another file of its form, in MiB."""
    found = re.search(rf"^{key}:\s+(\d+) kB", Path(f"/proc/{pid}/{file}").read_text(), re.M)
    return int(found[1]) / 1024 if found else 0.0


def processor(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def post(connection: http.client.HTTPConnection, model: str, body: object) -> int:
    """The answer's status; the connection stays open."""
    connection.request("POST", f"/ai/run/{model}", json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    return answer.status


def until(what: str, is_so: Callable[[], object], limit: float = 60) -> None:
    """Waits, and ends the benchmark when it takes too long."""
    end = time.monotonic() + limit
    while not is_so():
        if time.monotonic() > end:
            sys.exit(f"waited {limit} s for {what}")
        time.sleep(0.005)
