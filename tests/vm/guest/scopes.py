"""In the guest: instances in scopes of systemd, beside the service. Called by `../test_package.py`, as
`scopes.py NAME [ARGUMENT]`.

What holds after each job is the job's own; all of them begin with the model `eats` that has answered.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import client
from client import CGROUP, EATS, LIMIT_KB, SCOPES, leftovers, publish, status, wait_for
from service import CONFIG, ask, engine, main, processes, run, show

BUS = Path("/run/dbus/system_bus_socket")
LIMITS = {"memory.max": f"{LIMIT_KB << 10}", "memory.swap.max": "0", "memory.oom.group": "1"}
LIMITS["cpu.max"] = "200000 100000"


def limits(place: Path) -> dict[str, str]:
    """Limits of a group, by the kernel."""
    return {name: (place / name).read_text().strip() for name in LIMITS}


def keep_their_limits() -> None:
    """A model is in its scope under its limits, whatever systemd reads anew."""
    place, before = client.group(engine()), engine()
    scope = place.parent.name
    for command in (["true"], ["daemon-reload"], ["daemon-reexec"], ["daemon-reload"]):
        if command != ["true"]:
            run("systemctl", *command)
        assert limits(place) == LIMITS, command
        assert (place.parent / "cpu.weight").read_text().strip() == "200", command
        assert (show(scope, "ActiveState"), show(scope, "Delegate")) == ("active", "yes"), command
    assert show(scope, "Slice") == "omni-models.slice"
    assert not (place.parent / "cgroup.procs").read_text(), "processes are in the parts alone"
    assert (ask()[0], engine()) == (200, before)
    publish("later", EATS)
    wait_for("a start after that", lambda: client.ask("later", 0)[0] == 200)


def outlive_both_services() -> None:
    """Both services are killed and restarted: the model's process goes on in its scope."""
    before, place = engine(), client.group(engine())
    for unit in ("omni-launcher.service", "omni.service"):
        main = show(unit, "MainPID")
        os.kill(int(main), signal.SIGKILL)
        wait_for("the next process", lambda unit=unit, main=main: show(unit, "MainPID") not in ("0", main))
        wait_for("the service", lambda unit=unit: show(unit, "ActiveState") == "active")
    run("systemctl", "restart", "omni-launcher", "omni")
    wait_for("an answer", lambda: ask()[0] == 200)
    assert (engine(), client.group(engine())) == (before, place)


def tell_want_of_memory() -> None:
    """A model beyond its memory limit gets that as its cause of death, comes back, and leaves no failed unit."""
    answered, text = ask(256)
    assert answered == 502, text
    assert client.await_death("eats") == "killed for exceeding its memory limit"
    assert run("systemctl", "list-units", "--failed", "--no-legend").strip() == ""
    wait_for("one scope", lambda: len([*SCOPES.glob("*.scope")]) == 1)


def come_from_zygotes() -> None:
    """Instances that come from a zygote are each in a scope of their own, beside the zygote's."""
    publish("forks", EATS, "[scaling]\nmin-instances = 2\nmax-instances = 2\n")
    wait_for("an answer", lambda: client.ask("forks", 0)[0] == 200)
    wait_for("a zygote", lambda: [*SCOPES.glob("omni-zygote-*.scope")])
    run("omnictl", "restart", "forks")
    wait_for("both", lambda: sum(one["state"] == "ready" for one in status("forks")["instances"]) == 2)
    places = {client.group(one["pid"]) for one in status("forks")["instances"]}
    assert len(places) == 2 and all(place.parent.parent == SCOPES for place in places), places
    assert all(limits(place) == LIMITS for place in places)


def are_not_left_by_killed_starts(first: str) -> None:
    """The launcher is killed at three moments of starts, of which this is the first: of what they had begun nothing
    stays.
    """
    publish("later", EATS)
    for count in range(3):
        asked = subprocess.Popen(["omnictl", "restart", "later" if count else "eats"], stderr=subprocess.DEVNULL)
        time.sleep(0.08 * (int(first) + count))
        os.kill(main("omni-launcher.service"), signal.SIGKILL)
        asked.wait()
        wait_for("the launcher", lambda: show("omni-launcher.service", "ActiveState") == "active")
    for model in ("later", "eats"):
        wait_for("an answer", lambda model=model: client.ask(model, 0)[0] == 200)
    ids = lambda: {one["id"] for model in ("later", "eats") for one in status(model)["instances"]}  # noqa: E731
    found = lambda: {place.name for place in SCOPES.glob("*.scope")}  # noqa: E731
    wait_for("scopes of what runs alone", lambda: found() == {f"omni-{one}.scope" for one in ids()})
    run("systemctl", "stop", "omni")
    wait_for("nothing to be left", lambda: not [*leftovers()])


def await_idle_model() -> None:
    """The model `later` has answered, and is started again when it is asked."""
    publish("later", EATS, '[scaling]\nidle-timeout = "1ms"\n')
    wait_for("an answer", lambda: client.ask("later", 0)[0] == 200)
    wait_for("its end", lambda: len([*SCOPES.glob("*.scope")]) == 1)


def wait_for_a_bus_that_stands_still() -> None:
    """A start waits for the bus, and no model that runs; then all is well again. What comes of a bus that stands still
    for longer is a test of `worker/cgroup/src/bus.rs`, and takes longer than a job may.
    """
    before = engine()
    bus = int(show("dbus.service", "MainPID"))
    await_idle_model()
    os.kill(bus, signal.SIGSTOP)
    answers: list[int] = []
    asked = threading.Thread(target=lambda: answers.append(client.ask("later", 0)[0]))
    asked.start()
    try:
        wait_for("the process that waits for its scope", lambda: len(processes("omni-launcher.service")) == 2)
        assert (ask()[0], engine(), status("later")["state"], answers) == (200, before, "starting", [])
    finally:
        os.kill(bus, signal.SIGCONT)
    asked.join()
    assert (answers, status("later")["restarts"]) == ([200], 0)
    run("systemctl", "stop", "omni")
    wait_for("nothing to be left", lambda: not [*leftovers()])


def fail_at_once_without_a_bus() -> None:
    """A bus that is gone fails a start, clearly, and no model that runs. When it is back, all is well again."""
    before = engine()
    await_idle_model()
    BUS.rename("/run/dbus/away")
    os.kill(int(show("dbus.service", "MainPID")), signal.SIGKILL)
    answered, text = client.ask("later", 0)
    assert answered == 503, text
    words = ["journalctl", "--no-pager", "-o", "verbose", "-u", "omni-launcher"]
    assert "the system bus cannot be reached" in run(*words), run(*words)
    assert (ask()[0], engine()) == (200, before)
    Path("/run/dbus/away").rename(BUS)
    wait_for("an answer", lambda: client.ask("later", 0)[0] == 200)
    run("systemctl", "stop", "omni")
    wait_for("nothing to be left", lambda: not [*leftovers()])


def change_their_driver() -> None:
    """From one driver to the other and back: running instances are kept, and removed by the later driver."""
    good, first = CONFIG.read_text(), engine()
    CONFIG.write_text(good.replace('cgroup-driver = "auto"', 'cgroup-driver = "cgroupfs"'))
    assert CONFIG.read_text() != good
    run("systemctl", "restart", "omni-launcher")
    publish("later", EATS)
    wait_for("an answer", lambda: client.ask("later", 0)[0] == 200)
    second = client.engine("later")
    assert client.group(second).is_relative_to(CGROUP) and client.group(first).is_relative_to(SCOPES)
    assert (ask()[0], engine()) == (200, first)
    CONFIG.write_text(good)
    run("systemctl", "restart", "omni-launcher")
    wait_for("the launcher", lambda: show("omni-launcher.service", "ActiveState") == "active")
    assert (client.ask("later", 0)[0], client.engine("later"), engine()) == (200, second, first)
    for model, pid in (("later", second), ("eats", first)):
        run("omnictl", "restart", model)
        wait_for("an answer", lambda model=model: client.ask(model, 0)[0] == 200)
        wait_for("another one", lambda model=model, pid=pid: client.engine(model) != pid)
        assert client.group(client.engine(model)).is_relative_to(SCOPES)
    run("systemctl", "stop", "omni")
    wait_for("nothing to be left", lambda: not [*leftovers()])


def are_refused_without_a_bus() -> None:
    """Asked for without a bus: a wrong configuration. By default the kernel's files are taken, which is said."""
    good = CONFIG.read_text()
    run("systemctl", "stop", "omni", "omni-launcher")
    CONFIG.write_text(good.replace('cgroup-driver = "auto"', 'cgroup-driver = "systemd"'))
    BUS.rename("/run/dbus/away")
    failed = subprocess.run(["/usr/lib/omni/omni-launcher"], capture_output=True, text=True, check=False)
    assert failed.returncode == 78 and "there is no system bus" in failed.stdout + failed.stderr, failed
    CONFIG.write_text(good)
    Path("/run/omni/launcher.sock").unlink(missing_ok=True)
    command = ["/usr/lib/omni/omni-launcher"]
    launcher = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait_for("its socket", lambda: Path("/run/omni/launcher.sock").exists())
    launcher.terminate()
    said = "".join(launcher.communicate())
    assert "cgroupfs" in said and "there is no system bus" in said, said


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
