"""In the guest: the package, and the service that it installs. One function for each job.

Called by `../test_package.py`, as `service.py NAME`: `is_installed` once, with the package `omni.deb`, and all others
each in the guest that it has left. `next.deb` are the same programs as a later version.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import client
from client import EATS, LIMIT_KB, MODELS, leftovers, publish, status, wait_for

CONFIG = Path("/etc/omni/omni.toml")
UNITS = ("omni.service", "omni-launcher.service")
KILLS = 20


def run(*command: str | Path) -> str:
    """Output of a command; it must succeed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{journal()}"
    return done.stdout


def journal() -> str:
    """The end of what scheduler and launcher have said."""
    command = ["journalctl", "--no-pager", "-o", "cat", "-n", "60", "-u", "omni", "-u", "omni-launcher"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def show(unit: str, name: str) -> str:
    """A property of a unit."""
    return run("systemctl", "show", "--value", "-p", name, unit).strip()


def processes(unit: str) -> list[int]:
    """The process ids of a service's processes, as its MainPID, but a file is read in no time."""
    try:
        return [int(pid) for pid in Path("/sys/fs/cgroup/omni.slice", unit, "cgroup.procs").read_text().split()]
    except OSError:
        return []  # the group is gone


def main(unit: str) -> int:
    """Process id of a service's only process, 0 for none."""
    return next(iter(processes(unit)), 0)


def ask(mib: int = 0) -> tuple[int, Any]:
    """The status of the model's answer, and what it says."""
    return client.ask("eats", mib)


def engine() -> int:
    """The process id of the model's only instance."""
    return client.engine("eats")


class Load:
    """Requests one after the other, until the block ends: none may fail."""

    def __enter__(self) -> Load:
        self._stop = threading.Event()
        self.answers: list[tuple[int, Any]] = []
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()
        return self

    def _ask(self) -> None:
        while not self._stop.wait(0.02):
            try:
                self.answers.append(ask())
            except Exception as error:  # an answer that is cut off, for example: it must not end the load unseen
                self.answers.append((0, repr(error)))

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        failed = [answer for answer in self.answers if answer[0] != 200]
        assert self.answers and not failed, f"{len(failed)} of {len(self.answers)}: {failed[:3]}\n{journal()}"


def is_installed() -> None:
    """Installed, the package serves at once, and has the files that it brought."""
    run("dpkg", "--install", "omni.deb")
    assert run("dpkg", "--verify", "omni") == ""
    publish("eats", EATS)
    wait_for("an answer", lambda: ask()[0] == 200)


def serves() -> None:
    """The service runs, enabled, with what its units promise, and says how it is."""
    for unit in ("omni.service", "omni-launcher.service", "omni-data.socket", "omni-admin.socket"):
        assert show(unit, "ActiveState") == "active", f"{unit}\n{journal()}"
    for unit in ("omni.service", "omni-data.socket", "omni-admin.socket"):
        assert show(unit, "UnitFileState") == "enabled", unit
    wait_for("the status line", lambda: "1 models, 1 ready" in show("omni.service", "StatusText"))
    main = Path("/proc", show("omni.service", "MainPID"))
    status = dict(line.split(":\t", 1) for line in (main / "status").read_text().splitlines() if ":\t" in line)
    assert (status["CapEff"].strip("0"), status["NoNewPrivs"], status["Seccomp"]) == ("", "1", "2"), status
    assert main.owner() == "omni"
    assert "omni.slice" in (main / "cgroup").read_text()
    place = client.group(engine())
    assert place.parent.parent == client.SCOPES and place.parent.suffix == ".scope", "a model is in a scope of its own"


def is_in_the_journal() -> None:
    """Output and events of a model are found by its name, its request and the kind of message."""
    code = """
import sys
print("ready")
def handle_request(request, context):
    print("MODEL=other\\x1b[2J", flush=True)
    context.logger.warning("of this request")
    print("<3>broken", file=sys.stderr, flush=True)
    return request.id
"""
    publish("speaks", code)
    (request,) = {wait_for("an answer", lambda: (now := client.ask("speaks", 0))[0] == 200 and now[1])}
    said = {"ready", "MODEL=other\\u{1b}[2J", "of this request", "broken"}
    spoken = wait_for("its words", lambda: len(now := entries("MODEL=speaks", "-t", "omni-model")) >= 4 and now)
    by_text = {text(entry): entry for entry in spoken}
    assert said <= set(by_text), by_text
    assert {entry["MODEL"] for entry in spoken} == {"speaks"}
    assert by_text["of this request"]["REQUEST_ID"] == request
    priorities = {words: by_text[words]["PRIORITY"] for words in ("ready", "of this request", "broken")}
    assert priorities == {"ready": "5", "of this request": "4", "broken": "3"}
    (instance,) = status("speaks")["instances"]
    assert entries(f"INSTANCE={instance['id']}", "-t", "omni-launcher")
    states = entries("MODEL=speaks", "-t", "omni-scheduler", "TO=ready")
    catalogue = run("journalctl", "--no-pager", "-x", f"MESSAGE_ID={states[0]['MESSAGE_ID']}", "MODEL=speaks")
    assert "Subject: Model speaks is ready now" in catalogue, catalogue


def entries(*matches: str) -> list[dict[str, Any]]:
    """Entries of the journal."""
    return [json.loads(line) for line in run("journalctl", "--no-pager", "-o", "json", *matches).splitlines()]


def text(entry: dict[str, Any]) -> str:
    """The message; one with control characters is a list of bytes."""
    message = entry["MESSAGE"]
    return bytes(message).decode() if isinstance(message, list) else message


def leaves_processors_to_others() -> None:
    """A model that computes all the time is kept to the processors of its limit."""
    code = """
import hashlib, threading
def work():
    while True:
        hashlib.sha256(bytes(1 << 20)).digest()
def handle_request(request, context):
    for _ in range(4):
        threading.Thread(target=work, daemon=True).start()
"""
    publish("busy", code, "cpus = 1.0\n")
    wait_for("an answer", lambda: client.ask("busy", 0)[0] == 200)
    kept, free = client.engine("busy"), engine()
    wait_for("one processor", lambda: processors(kept) in ("0", "1"))
    assert processors(free) == "0-1"


def processors(pid: int) -> str:
    """Where a process may run."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith("Cpus_allowed_list"))


def slows_down_who_writes_without_end() -> None:
    """A model that writes to its cache directory without end has a limit there, and has none when it writes no more."""
    code = """
import os, threading
busy = threading.Event()
def write_on(path):
    while busy.wait():
        with open(path, "wb") as file:
            for _ in range(8):
                file.write(bytes(1 << 20))
                os.fdatasync(file.fileno())
def setup(context):
    path = os.path.join(context.cache_dir, "file")
    threading.Thread(target=write_on, args=(path,), daemon=True).start()
def handle_request(request, context):
    busy.clear() if busy.is_set() else busy.set()
"""
    publish("writes", code, '[limits]\ncache = "16MiB"\n')
    wait_for("an answer", lambda: client.ask("writes", 0)[0] == 200)
    (place,) = Path(f"/proc/{client.engine('writes')}/cgroup").read_text().splitlines()
    limits = Path("/sys/fs/cgroup" + place.removeprefix("0::")) / "io.max"
    wait_for("a limit", lambda: "wbps=10485760" in limits.read_text())
    assert client.ask("writes", 0)[0] == 200
    wait_for("no limit", lambda: not limits.read_text().strip())


def is_looked_at_by_the_doctor() -> None:
    """Beside the service, everything that a node needs is found with version 2, and nothing is disturbed."""
    model = engine()
    answer = json.loads(run("omnictl", "doctor", "-o", "json"))
    found = {line["check"]: line["found"] for line in answer["checks"] if line["state"] == "ok"}
    assert answer["serves"] is True, answer
    assert found["control groups"] == "version 2: cpu, memory, pids", answer
    assert found["driver of groups"] == "systemd: a scope for each instance", answer
    assert found["sandbox"] == "a program ran in one", answer
    assert found["runtime folder"] == "/run/omni: in memory", answer
    assert not [*Path("/sys/fs/cgroup").glob("**/omni-probe*")]
    assert engine() == model
    assert ask()[0] == 200


def outlives_its_models() -> None:
    """A model that is out of memory is no failure of the service, which sees the model's limit."""
    assert ask()[1]["MemTotal"] == LIMIT_KB
    status, text = ask(256)
    assert status == 502, text
    assert client.await_death("eats") == "killed for exceeding its memory limit"
    for unit in ("omni.service", "omni-launcher.service"):
        assert (show(unit, "ActiveState"), show(unit, "NRestarts")) == ("active", "0")


def survives_kills() -> None:
    """Scheduler and launcher are killed again and again: the model's process goes on, no client notices, and neither
    takes the other along.
    """
    before = engine()
    for count in range(KILLS):
        if count % 4 == 0:  # as many ends in a minute are what StartLimitBurst is for
            run("systemctl", "reset-failed", *UNITS)
        unit, other = UNITS if count % 4 < 3 else UNITS[::-1]
        killed, stays = main(unit), main(other)
        os.kill(killed, signal.SIGKILL)
        # A client that connects before the next scheduler serves waits in the socket.
        status, text = ask()
        assert status == 200, f"after kill {count}: {status} {text}\n{journal()}"
        wait_for("the next process", lambda unit=unit, killed=killed: main(unit) not in (0, killed))
        assert main(other) == stays, f"after kill {count} of {unit}\n{journal()}"
    wait_for("the launcher", lambda: json.loads(run("omnictl", "-o", "json", "status"))["launcher_connected"])
    for unit in UNITS:
        wait_for("the service", lambda unit=unit: show(unit, "ActiveState") == "active")
    assert [show(unit, "NRestarts") for unit in UNITS] != ["0", "0"]
    assert engine() == before


def reloads() -> None:
    """A reload takes the configuration as it is now, says what is new, and refuses a wrong one."""
    before, main, launcher = engine(), show("omni.service", "MainPID"), show("omni-launcher.service", "MainPID")
    good = CONFIG.read_text()
    CONFIG.write_text(good + "\n[sever]\n")
    refused = subprocess.run(["systemctl", "reload", "omni"], capture_output=True, text=True, check=False)
    assert refused.returncode != 0 and "sever" in journal(), f"{refused}\n{journal()}"
    assert (show("omni.service", "MainPID"), show("omni-launcher.service", "MainPID")) == (main, launcher)
    assert ask()[0] == 200
    CONFIG.write_text(good.replace("\nconnections = ", "\nconnections = 1"))
    assert CONFIG.read_text() != good
    with Load():
        run("systemctl", "reload", "omni")
        wait_for("another launcher", lambda: show("omni-launcher.service", "MainPID") not in ("0", launcher))
        wait_for("the launcher", lambda: show("omni-launcher.service", "ActiveState") == "active")
    assert show("omni.service", "MainPID") not in ("0", main)
    assert show("omni.service", "ActiveState") == "active"
    assert "server.connections = 1" in journal(), journal()
    assert engine() == before


def restarts() -> None:
    """`systemctl restart` under load: requests wait, the model goes on."""
    before, killed, stays = engine(), *map(main, UNITS)
    with Load():
        run("systemctl", "restart", "omni")
    assert main(UNITS[0]) not in (0, killed)
    assert (main(UNITS[1]), engine()) == (stays, before)


def is_upgraded_under_load() -> None:
    """The next version of the package is installed under load: no request fails, no model is loaded again."""
    before, main = engine(), show("omni.service", "MainPID")
    with Load() as load:
        run("dpkg", "--install", "next.deb")
        enough = len(load.answers) + 10
        wait_for("some more answers", lambda: len(load.answers) > enough)
    assert show("omni.service", "MainPID") not in ("0", main)
    assert engine() == before
    assert "next" in run("dpkg-query", "--show", "--showformat=${Version}", "omni")


def is_not_upgraded_into_a_wrong_configuration() -> None:
    """A configuration that the next version refuses: its package is installed and says so, the version before serves
    on. Once it is mended, a reload is all that is missing.
    """
    before, main = engine(), show("omni.service", "MainPID")
    good = CONFIG.read_text()
    CONFIG.write_text(good + "\n[sever]\n")
    with Load():
        said = run("dpkg", "--install", "next.deb")
    assert "sever" in said and "systemctl reload omni" in said, said
    assert show("omni.service", "MainPID") == main
    CONFIG.write_text(good)
    with Load():
        run("systemctl", "reload", "omni")
    assert show("omni.service", "MainPID") not in ("0", main)
    assert engine() == before


def is_not_tried_again_when_misconfigured() -> None:
    """A wrong configuration at a start: one try, a clear message, and after the repair the service starts."""
    run("systemctl", "stop", "omni.service", "omni-data.socket", "omni-admin.socket")
    good = CONFIG.read_text()
    CONFIG.write_text(good + "\n[sever]\n")
    failed = subprocess.run(["systemctl", "start", "omni"], capture_output=True, check=False)
    assert failed.returncode != 0
    wait_for("the failure", lambda: show("omni.service", "ActiveState") == "failed")
    assert (show("omni.service", "ExecMainStatus"), show("omni.service", "NRestarts")) == ("78", "0")
    assert "unknown" in journal() and "sever" in journal(), journal()
    CONFIG.write_text(good)
    run("systemctl", "start", "omni")
    wait_for("an answer", lambda: ask()[0] == 200)


def publish_alone() -> None:
    """A model, and the drop-ins that the operators' page has for a node of it alone."""
    publish("alone", EATS)
    for unit, program in (("omni", "omni-scheduler"), ("omni-launcher", "omni-launcher")):
        drop_in = Path(f"/etc/systemd/system/{unit}.service.d/single.conf")
        drop_in.parent.mkdir()
        drop_in.write_text(f"[Service]\nExecStart=\nExecStart=/usr/lib/omni/{program} --model {MODELS}/alone\n")
    run("systemctl", "daemon-reload")


def serves_a_single_model() -> None:
    """With drop-ins as the operators' page has them: ready when the model is, started again when that has died."""
    publish_alone()
    run("systemctl", "restart", "omni-launcher", "omni")
    assert client.ask("alone", 0)[0] == 200, "ready before its model"
    assert ask()[0] == 404
    model = client.engine("alone")
    os.kill(model, signal.SIGKILL)
    wait_for("the service to be started again", lambda: show("omni.service", "NRestarts") == "1")
    wait_for("an answer", lambda: client.ask("alone", 0)[0] == 200)
    assert client.engine("alone") != model
    assert "the model has failed, and the service ends with it" in journal(), journal()


def refuses_a_broken_single_model() -> None:
    """A model that cannot be served is a wrong configuration: one try, and a clear message."""
    publish_alone()
    run("systemctl", "stop", "omni")
    (MODELS / "alone/omni.toml").write_text("[scaling]\nconcurency = 2\n")
    assert subprocess.run(["systemctl", "start", "omni"], capture_output=True, check=False).returncode != 0
    wait_for("the failure", lambda: show("omni.service", "ActiveState") == "failed")
    assert show("omni.service", "ExecMainStatus") == "78"
    assert "concurency" in journal(), journal()


def stops() -> None:
    """Stopped, it leaves no model; started, it serves as before."""
    model = engine()
    run("systemctl", "stop", "omni.service")
    assert not Path(f"/proc/{model}").exists()
    # The launcher stops after the service, whose end is all that was waited for.
    wait_for("the launcher's end", lambda: show("omni-launcher.service", "ActiveState") == "inactive")
    run("systemctl", "start", "omni.service")
    wait_for("an answer", lambda: ask()[0] == 200)


def is_purged() -> None:
    """Purged as it runs, it leaves nothing but what people put there."""
    run("dpkg", "--purge", "omni")
    wait_for("nothing to be left", lambda: not [*leftovers()])
    known = ("/var/lib/omni", "/var/cache/omni", "/run/omni", "/etc/omni", "/usr/lib/omni")
    assert not [path for path in known if Path(path).exists()]
    assert not [*Path("/etc/systemd/system").rglob("omni*")]
    assert (MODELS / "eats/model.py").exists()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
