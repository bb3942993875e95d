"""Debian packages, from this machine's own mirror: into root file systems, and into folders that are kept.

Called by `image.py`, for the programs of QEMU and for each guest. Needs root, apt, perl and mount namespaces.

Invariant: nothing is installed on this machine, everything is below target/vm; a folder has its name only once it is
whole, so an interrupt leaves nothing to remove; its content follows from its inputs, or it is made again.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
VM = HERE.parent.parent / "target/vm"
# Ends with us, however we end, and so do all processes and mounts that come of it.
BOUND = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount-proc", "--pid", "--fork", "--kill-child"]


def kept(name: str, inputs: Sequence[bytes], make: Callable[[Path], None]) -> Path:
    """The folder of this name, which `make` fills when it is not there or has been made of other inputs."""
    folder, fresh = VM / name, VM / f".{name}"
    digest = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in inputs)).hexdigest()
    stamp = folder / "made-of"
    VM.mkdir(parents=True, exist_ok=True)
    with (VM / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == digest:
            return folder
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        make(fresh)
        (fresh / stamp.name).write_text(digest)
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    return folder


def sources(*names: str) -> list[bytes]:
    """Contents of files of this folder: recipes are inputs, too."""
    return [(HERE / name).read_bytes() for name in names]


class Unreachable(RuntimeError):
    """No mirror of Debian answers."""


def apt(tools: Path, *arguments: str) -> str:
    """Output of apt, with lists of its own: those of this machine may be old, or missing."""
    options = ["-qq", "-o", "APT::Sandbox::User=root", "-o", f"Dir::State::Lists={tools / 'lists'}"]
    command = ["apt-get", *options, *arguments]
    return subprocess.run(command, cwd=tools, check=True, stdout=subprocess.PIPE, text=True).stdout


def fetch_mmdebstrap(tools: Path) -> None:
    """The program that makes root file systems, unpacked: `install` runs it."""
    (tools / "lists/partial").mkdir(parents=True)
    # An update only warns of unreachable mirrors.
    apt(tools, "update")
    try:
        apt(tools, "download", "mmdebstrap")
    except subprocess.CalledProcessError as error:
        raise Unreachable("apt reaches no mirror of Debian: see /etc/apt") from error
    (package,) = tools.glob("mmdebstrap_*.deb")
    subprocess.run(["dpkg-deb", "-x", package, tools], check=True)
    package.unlink()


def mirror(tools: Path) -> str:
    """Where apt on this machine gets Debian from."""
    found = apt(tools, "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian").split()
    if not found:
        raise Unreachable("apt has no list of a mirror's packages")
    return found[0]


def install(tools: Path, variant: str, release: str, packages: Sequence[str], root: Path) -> None:
    """Makes a root file system of these packages and of what they depend on.

    The variant says how: `extract` unpacks them and runs nothing of theirs, `minbase` is a system that works.
    """
    chosen = ["--mode=root", f"--variant={variant}", f"--include={','.join(packages)}"]
    what = [release, root, f"deb {mirror(tools)} {release} main"]
    subprocess.run([*BOUND, tools / "usr/bin/mmdebstrap", "--quiet", *chosen, *what], check=True)
