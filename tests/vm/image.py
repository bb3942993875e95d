"""The guests: Debian 12 and 13 with systemd, booted once and saved as they wait for a job.

Called by `vm.py`, and by `run.sh` and CI for QEMU alone: exit status 75 when no mirror of Debian can be reached. A
guest in which a first job was done is another one, for all that begins from there. Each is a folder in target/vm that
is made anew when its recipe (this folder's files, the job) or QEMU changes:

    disk      its root file system as it was at the moment of the state
    kernel    what QEMU loads,
    initrd    always the same as at the first boot
    state     memory and devices of the guest, in which `guest/agent.sh` waits for a job
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import debian
import qemu

RELEASES = ["bookworm", "trixie"]
# Packages that a node needs, beside a system that boots: Python for models, mke2fs for their cache folders.
PACKAGES = ["systemd", "systemd-sysv", "dbus", "udev", "linux-image-cloud-amd64", "python3", "e2fsprogs"]
DISK = 1 << 30
# Units that would write on the console, or run in the middle of a test.
MASKED = ["serial-getty@ttyS0.service", "getty.target", "apt-daily.timer", "apt-daily-upgrade.timer", "fstrim.timer"]
MASKED += ["dpkg-db-backup.timer", "e2scrub_all.timer", "systemd-tmpfiles-clean.timer"]
BOOT_LIMIT = 900.0
MONITOR = ("-monitor", "unix:monitor,server=on,wait=off")


def tools() -> Path:
    """QEMU and mmdebstrap. QEMU is that of Debian 13: the one of Debian 12 crashes its newer kernel."""

    def make(folder: Path) -> None:
        debian.fetch_mmdebstrap(folder)
        debian.install(folder, "extract", "trixie", ["qemu-system-x86"], folder / "root")

    return debian.kept("tools", debian.sources("debian.py"), make)


def image(release: str) -> Path:
    """The folder of a guest."""
    programs = tools()

    def make(folder: Path) -> None:
        root = folder / "root"
        debian.install(programs, "minbase", release, PACKAGES, root)
        furnish(root)
        shutil.copy(root / "vmlinuz", folder / "kernel")
        shutil.copy(root / "initrd.img", folder / "initrd")
        with (folder / "disk").open("wb") as disk:
            disk.truncate(DISK)
        subprocess.run(["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", root, folder / "disk"], check=True)
        shutil.rmtree(root)
        boot(programs, folder)

    emulator = (programs / "root/usr/bin/qemu-system-x86_64").read_bytes()
    recipe = debian.sources("debian.py", "image.py", "qemu.py", "guest/agent.sh", "guest/agent.service")
    return debian.kept(release, [emulator, *recipe], make)


def furnish(root: Path) -> None:
    """Puts the agent into a root file system, and silences the rest."""
    units = root / "etc/systemd/system"
    for unit in MASKED:
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")
    guest = debian.HERE / "guest"
    shutil.copy(guest / "agent.sh", root / "usr/local/sbin/agent.sh")
    shutil.copy(guest / "agent.service", units / "agent.service")
    (units / "multi-user.target.wants/agent.service").symlink_to("../agent.service")
    (root / "etc/hostname").write_text("guest\n")
    # Without one systemd would take this for a machine that is to be set up.
    (root / "etc/machine-id").write_text(f"{uuid.uuid4().hex}\n")


def boot(programs: Path, folder: Path) -> None:
    """Starts the guest, waits until its agent does, and saves it."""
    with tempfile.TemporaryFile(dir=folder) as job:
        job.truncate(qemu.JOB_BYTES)
        with qemu.machine(programs, folder, "snapshot=off", job, *MONITOR) as process:
            await_agent(qemu.lines(process, BOOT_LIMIT))
            save(folder / "monitor")


def after(release: str, name: str, files: Mapping[str, str | Path]) -> Path:
    """The folder of a guest as a job has left it."""
    programs, base = tools(), image(release)

    def make(folder: Path) -> None:
        for part in ("kernel", "initrd"):
            (folder / part).hardlink_to(base / part)
        subprocess.run(["cp", "--sparse=always", base / "disk", folder / "disk"], check=True)
        restore = ("-incoming", f"file:{base / 'state'}")
        with tempfile.TemporaryFile(dir=folder) as job:
            qemu.pack(files, job)
            with qemu.machine(programs, folder, "snapshot=off", job, *restore, *MONITOR) as process:
                lines = qemu.lines(process, BOOT_LIMIT)
                said = []
                for line in lines:
                    said.append(line)
                    if line.startswith("EXIT "):
                        break
                if not said or said[-1] != "EXIT 0":
                    raise RuntimeError(f"{release}: the first job failed:\n" + "\n".join(said))
                job.truncate(0)
                job.truncate(qemu.JOB_BYTES)
                await_agent(lines)
                save(folder / "monitor")

    contents = [part.read_bytes() if isinstance(part, Path) else part.encode() for part in files.values()]
    return debian.kept(f"{release}-{name}", [(base / "made-of").read_bytes(), *contents], make)


def await_agent(lines: Iterator[str]) -> None:
    """Returns when the guest waits for a job."""
    said = []
    for line in lines:
        said.append(line)
        if line == "READY":
            return
    raise RuntimeError("the guest does not become ready:\n" + "\n".join(said))


def save(monitor: Path) -> None:
    """Has QEMU write the state; from then on the guest stands still, and its disk with it."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(str(monitor))
        words = connection.makefile("rwb", buffering=0)
        order(words, "")
        order(words, "migrate file:state")
        # Complete only when reported so: the order is answered before the state of the devices is written.
        while status := re.search(r"status:\s+(\w+)", answer := order(words, "info migrate")):
            if status[1] not in ("setup", "active", "device"):
                break
            time.sleep(0.05)
        if not status or status[1] != "completed":
            raise RuntimeError(f"QEMU does not save the guest:\n{answer}")
        words.write(b"quit\n")
        words.read()
    monitor.unlink(missing_ok=True)


def order(monitor: IO[bytes], command: str) -> str:
    """Answer of QEMU; an empty command waits for its greeting."""
    if command:
        monitor.write(f"{command}\n".encode())
    said = b""
    # The prompt comes back with what is typed, letter by letter, but with a line's end before it only once.
    while not said.endswith(b"\n(qemu) ") and (more := monitor.read(4096)):
        said += more
    return said.decode(errors="replace")


if __name__ == "__main__":
    try:
        print(tools())
    except debian.Unreachable as error:
        print(error, file=sys.stderr)
        sys.exit(os.EX_TEMPFAIL)
