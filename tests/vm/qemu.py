"""QEMU as a process of ours: a guest whose console is our pipe.

Called by `image.py`, which boots a guest once, and by `vm.py`, which restores it. QEMU emulates the processor (TCG), so
that no machine needs KVM for it: what a guest does is real, what time it takes is not.

Invariant: QEMU ends with the `with` block that started it, and with this process, however that ends; what a
guest writes on a restored disk lies in files without a name, which the kernel removes.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

# A saved state fits one machine only: all of this is part of it. The processor is an old one, which takes a fifth less
# time to emulate: a newer one has the kernel copy memory byte by byte, and save wide registers at each switch.
MACHINE = ["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "Nehalem", "-smp", "2", "-m", "1024"]
# No line of the kernel between those of a job, but its last one: a panic ends QEMU.
# It takes the timer for broken, and panics, when an emulated one does not tick in time: that is not asked.
KERNEL = "root=/dev/vda rw console=ttyS0 loglevel=1 panic=-1 systemd.show_status=0 no_timer_check mitigations=off"
KERNEL += " selinux=0 apparmor=0"
# Largest job. The guest learns the disk's size when it boots: it is always the same.
JOB_BYTES = 128 << 20


@contextmanager
def machine(tools: Path, image: Path, disk: str, job: IO[bytes], *options: str) -> Iterator[subprocess.Popen[str]]:
    """A guest with the options of its first disk, and a job on the second, whose file has a descriptor and no name."""
    libraries = tools / "root/usr/lib/x86_64-linux-gnu"
    # QEMU is of another Debian than this machine may be: it runs on its own C library.
    program = [libraries / "ld-linux-x86-64.so.2", "--library-path", libraries]
    program += [tools / "root/usr/bin/qemu-system-x86_64", "-L", tools / "root/usr/share/qemu"]
    program += ["-L", tools / "root/usr/share/seabios"]
    drives = [f"if=virtio,format=raw,file=disk,cache=unsafe,{disk}"]
    drives += [f"if=virtio,format=raw,file=/dev/fd/{job.fileno()},file.locking=off,readonly=on"]
    command = ["setpriv", "--pdeathsig", "KILL", *program, *MACHINE, "-nodefaults", "-no-reboot", "-display", "none"]
    command += ["-kernel", "kernel", "-initrd", "initrd", "-append", KERNEL, "-serial", "stdio", *options]
    command += [part for drive in drives for part in ("-drive", drive)]
    with subprocess.Popen(
        command,
        cwd=image,
        env={**os.environ, "TMPDIR": str(image)},
        pass_fds=[job.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def lines(process: subprocess.Popen[str], limit: float) -> Iterator[str]:
    """Output of the guest and of QEMU, as it comes. After this many seconds QEMU is ended, and with it the lines."""
    assert process.stdout is not None
    timer = threading.Timer(limit, process.kill)
    timer.start()
    try:
        for line in process.stdout:
            yield line.rstrip("\r\n")
    finally:
        timer.cancel()


def pack(files: Mapping[str, str | Path], disk: IO[bytes]) -> None:
    """Writes files, given as text or as files of this machine, as an archive that fills the disk of a job."""
    with tarfile.open(fileobj=disk, mode="w") as archive:
        for name, content in files.items():
            if isinstance(content, Path):
                archive.add(content.resolve(), name)
            else:
                entry = tarfile.TarInfo(name)
                entry.size, entry.mtime = len(content.encode()), int(time.time())
                archive.addfile(entry, io.BytesIO(content.encode()))
    if disk.tell() > JOB_BYTES:
        raise ValueError(f"a job of {disk.tell()} bytes does not fit on its disk of {JOB_BYTES}")
    disk.truncate(JOB_BYTES)
    disk.flush()
