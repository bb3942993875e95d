#!/usr/bin/env python3
"""Start time of a sandbox until its program begins: ours beside bubblewrap and runc, interleaved.

Usage (root): BWRAP=PATH RUNC=PATH bench/sandbox.py [--rounds 100]      default: those of PATH

Takes omni-worker and the example `begin` of `make bench` (or of the folder OMNI_BIN). All three are asked for the same:
namespaces for mounts, processes, IPC, host name, network and control groups, a root of read-only parts of this system
with /proc, /dev, /tmp and /dev/shm of its own, no capabilities, no new privileges, a filter of system calls. Ours and
runc have a control group with limits and a user of their own besides; bubblewrap, as root, has neither, and ours
alone has Landlock. Each time is from the first thing that is made for the sandbox to the first byte that its program
writes. The group above those of the sandboxes is there all the time, in every hierarchy. Prints one table.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import report
from node import BIN

# As `worker/examples/begin.rs` has it.
PROGRAM = ["/usr/bin/echo", "begun"]
UID = 3_999_999
MEMORY, PIDS, CPU_QUOTA, CPU_PERIOD = 256 << 20, 64, 100_000, 100_000
TMP = 16 << 20
# As `worker/sandbox/src/root.rs` has it: what of this system is in every sandbox.
SYSTEM = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"]
PARTS = [
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/timezone",
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
]
# Calls that runc's filter refuses; ours refuses more.
REFUSED = ["mount", "umount2", "pivot_root", "chroot", "setns", "unshare", "ptrace", "bpf", "keyctl", "kexec_load"]
# An instruction of classic BPF that allows all calls: the content of a filter costs nothing at the start.
ALLOW = struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)


def parts() -> tuple[list[str], dict[str, str]]:
    """Directories and files to bind, and the links of a merged /usr."""
    there = [path for path in SYSTEM if Path(path).exists()]
    links = {path: os.readlink(path) for path in there if Path(path).is_symlink()}
    return [path for path in there if path not in links] + [path for path in PARTS if Path(path).exists()], links


def bubblewrap(program: str, filters: int) -> list[str]:
    binds, links = parts()
    command = [program, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--unshare-cgroup"]
    for path in binds:
        command += ["--ro-bind", path, path]
    for path, target in links.items():
        command += ["--symlink", target, path]
    command += ["--proc", "/proc", "--dev", "/dev", "--size", str(TMP), "--tmpfs", "/tmp"]
    command += ["--size", str(TMP), "--tmpfs", "/dev/shm", "--remount-ro", "/", "--hostname", "begin"]
    command += ["--cap-drop", "ALL", "--new-session", "--die-with-parent", "--seccomp", str(filters)]
    return [*command, "--clearenv", "--setenv", "PATH", "/usr/bin:/bin", *PROGRAM]


def bundle(folder: Path, group: str) -> None:
    """A bundle for runc: an empty root, and all that is to be mounted there."""
    binds, links = parts()
    root = folder / "root"
    root.mkdir()
    for path, target in links.items():
        (root / path[1:]).symlink_to(target)
    flags = ["nosuid", "nodev"]
    own = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "size=64k"]},
    ]
    own += [
        {"destination": path, "type": "tmpfs", "source": "tmpfs", "options": [*flags, f"size={TMP}"]}
        for path in ("/dev/shm", "/tmp")
    ]
    bound = [
        {"destination": path, "type": "bind", "source": path, "options": ["rbind", "ro", *flags]} for path in binds
    ]
    limits = {
        "memory": {"limit": MEMORY, "swap": MEMORY},
        "pids": {"limit": PIDS},
        "cpu": {"quota": CPU_QUOTA, "period": CPU_PERIOD},
    }
    config: dict[str, Any] = {
        "ociVersion": "1.0.2",
        "root": {"path": "root", "readonly": True},
        "hostname": "begin",
        "process": {
            "args": PROGRAM,
            "env": ["PATH=/usr/bin:/bin"],
            "cwd": "/",
            "user": {"uid": UID, "gid": UID},
            "capabilities": {},
            "noNewPrivileges": True,
            "rlimits": [{"type": "RLIMIT_CORE", "hard": 1, "soft": 1}],
        },
        "mounts": own + bound,
        "linux": {
            "namespaces": [{"type": kind} for kind in ("mount", "pid", "ipc", "uts", "network", "cgroup")],
            "cgroupsPath": group,
            "resources": limits,
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/acpi", "/proc/scsi"],
            "readonlyPaths": ["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"],
            "seccomp": {
                "defaultAction": "SCMP_ACT_ALLOW",
                "architectures": ["SCMP_ARCH_X86_64"],
                "syscalls": [{"names": REFUSED, "action": "SCMP_ACT_ERRNO"}],
            },
        },
    }
    (folder / "config.json").write_text(json.dumps(config))


@contextlib.contextmanager
def parent_group(name: str) -> Iterator[None]:
    """A group in every hierarchy, for as long as this is entered. Each start has its own group below it."""
    root = Path("/sys/fs/cgroup")
    hierarchies = (
        [root]
        if (root / "cgroup.procs").exists()
        else [path for path in root.iterdir() if path.is_dir() and not path.is_symlink()]
    )
    groups = [hierarchy / name for hierarchy in hierarchies]
    try:
        for group in groups:
            group.mkdir()
        yield
    finally:
        for group in groups:
            if group.exists():
                group.rmdir()


def starts(chosen: argparse.Namespace, folder: Path, name: str) -> dict[str, list[float]]:
    """Milliseconds of each start of each kind."""
    filters, ours = os.memfd_create("filters", 0), "ours"
    os.write(filters, ALLOW)
    bundle(folder, f"/{name}/runc")
    commands: dict[str, list[str]] = {ours: []}
    if chosen.bwrap:
        commands["bubblewrap"] = bubblewrap(chosen.bwrap, filters)
    if chosen.runc:
        runc = [chosen.runc, "--root", str(folder / "state"), "run", "--bundle", str(folder), name]
        commands["runc"] = runc
    begin = [str(BIN / "examples/begin"), str(BIN / "omni-worker"), name]
    times: dict[str, list[float]] = {kind: [] for kind in commands}
    with subprocess.Popen(
        begin, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[filters]
    ) as process:
        assert process.stdin and process.stdout
        # The first of each is not counted: it reads programs from the disk.
        for _ in range(chosen.rounds + 1):
            for kind, command in commands.items():
                os.lseek(filters, 0, os.SEEK_SET)
                print(json.dumps(command), file=process.stdin, flush=True)
                said = process.stdout.readline()
                if not said:
                    sys.exit(f"{kind} did not start")
                times[kind].append(int(said) / 1e6)
        process.stdin.close()
    return {kind: values[1:] for kind, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    chosen = parser.parse_args()
    chosen.bwrap = os.environ.get("BWRAP") or shutil.which("bwrap")
    chosen.runc = os.environ.get("RUNC") or shutil.which("runc")
    report.machine()
    name = f"omni-bench-{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix=name) as folder, parent_group(name):
        times = starts(chosen, Path(folder), name)
    medians = {}
    for kind, values in times.items():
        medians[kind] = statistics.median(values)
        last = statistics.quantiles(values, n=100)[98]
        report.row(f"a sandbox starts, {kind}, n={len(values)}: p50, p99", f"{medians[kind]:.2f} ms, {last:.2f} ms")
    for kind, most in (("bubblewrap", 1.2), ("runc", 0.25)):
        if kind in medians:
            ratio = medians["ours"] / medians[kind]
            report.row(f"    ours to {kind}", f"{ratio:.2f}", f"<= {most}", ratio <= most)
        else:
            print(f"{kind} is not there (Debian: apt-get install {kind}), and left out")


if __name__ == "__main__":
    main()
