"""The package's maintainer scripts when something is wrong, with doubles of what they call.

Run by `make test`, as root. What they do with a real service is tried in guests (`tests/vm`).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "debian"
# A program that runs another one with less, as its options say: the double has them in the log only.
RUNS = 'while [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"'


class Machine:
    """Folders of its own for a script, and programs that write down how they were called."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "log"
        self.log.touch()
        self.programs = root / "programs"
        self.programs.mkdir()
        (root / "run/systemd/system").mkdir(parents=True)
        self.path = f"{self.programs}:/usr/bin:/bin"
        helpers = "systemd-sysusers systemd-tmpfiles deb-systemd-helper deb-systemd-invoke systemctl"
        for name in helpers.split():
            self.double(name)

    def double(self, name: str, body: str = "") -> Path:
        """A program of that name; `body` is what it does."""
        program = self.programs / name
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" "{name} $*" >> {self.log}\n{body}\n')
        program.chmod(0o755)
        return program

    def script(self, name: str) -> Path:
        """A maintainer script, which finds its folders in this machine."""
        script = self.root / name
        script.write_text(re.sub(r"(?<![\w/])/(run|var|etc|srv)/", rf"{self.root}/\1/", (SCRIPTS / name).read_text()))
        return script

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        env = {"PATH": self.path}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=env)

    def called(self, what: str) -> list[str]:
        """The calls that begin so."""
        return [line for line in self.log.read_text().splitlines() if line.startswith(what)]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def serving(machine: Machine) -> Iterator[Machine]:
    """A scheduler runs, which took over from another one and has a file of its own."""
    scheduler = machine.double("omni-scheduler", 'echo "sees $SEEN" >&2')
    flags = ["--config", "/etc/omni/a node.toml", "--succeed"]
    # A shell that waits has that command line.
    command, env = [scheduler, "-c", "read line", *flags], {"PATH": machine.path, "SEEN": "two words"}
    with subprocess.Popen(command, executable="/bin/sh", stdin=subprocess.PIPE, env=env) as process:
        machine.double("systemctl", f'case "$1" in reload) exit 1;; show) echo {process.pid};; esac')
        for name in ("nsenter", "setpriv"):
            machine.double(name, RUNS)
        yield machine


def upgrade(machine: Machine) -> subprocess.CompletedProcess[str]:
    return machine.run("sh", machine.script("postinst"), "configure", "0.1")


def test_an_upgrade_is_a_reload(machine: Machine) -> None:
    done = upgrade(machine)
    assert (done.returncode, done.stderr) == (0, "")
    assert machine.called("systemctl reload") and not machine.called("deb-systemd-invoke")


def test_a_scheduler_that_cannot_hand_over_is_restarted(serving: Machine) -> None:
    done = upgrade(serving)
    assert (done.returncode, done.stderr) == (0, "sees two words\n")
    assert serving.called("deb-systemd-invoke") == ["deb-systemd-invoke restart omni-launcher.service omni.service"]
    asked = "omni-scheduler -c read line --config /etc/omni/a node.toml --check-config"
    assert serving.called("omni-scheduler") == [asked]
    (user,) = serving.called("setpriv")
    assert user.startswith("setpriv --reuid=omni --regid=omni --init-groups ")


def test_a_scheduler_with_a_wrong_new_configuration_serves_on(serving: Machine) -> None:
    serving.double("omni-scheduler", "echo unknown key >&2; exit 78")
    done = upgrade(serving)
    assert done.returncode == 0
    assert "unknown key" in done.stderr and "then: systemctl reload omni" in done.stderr
    assert not serving.called("deb-systemd-invoke")


def test_an_ended_scheduler_is_restarted(serving: Machine) -> None:
    serving.double("systemctl", 'case "$1" in reload) exit 1;; show) echo 0;; esac')
    assert upgrade(serving).returncode == 0
    assert serving.called("deb-systemd-invoke restart") and not serving.called("omni-scheduler")


def test_a_purge_leaves_a_mount_point_and_does_the_rest(machine: Machine) -> None:
    cache, state = machine.root / "var/cache/omni", machine.root / "var/lib/omni"
    for folder in (cache, state / "scheduler"):
        folder.mkdir(parents=True)
    fills = 'mount -t tmpfs none "$1" && mkdir "$1/uv" && sh "$2" purge && ls -A "$1"'
    done = machine.run("unshare", "--mount", "sh", "-c", fills, "sh", cache, machine.script("postrm"))
    assert (done.returncode, done.stdout) == (0, ""), done
    assert "busy" in done.stderr and "by hand" in done.stderr
    assert cache.exists() and not state.exists()
    assert machine.called("deb-systemd-helper purge") and machine.called("deb-systemd-helper unmask")


def test_a_purge_leaves_nothing(machine: Machine) -> None:
    for folder in ("var/cache/omni/uv", "var/lib/omni/scheduler", "run/omni"):
        (machine.root / folder).mkdir(parents=True)
    done = machine.run("sh", machine.script("postrm"), "purge")
    assert (done.returncode, done.stderr) == (0, "")
    assert not [*machine.root.rglob("omni")]
