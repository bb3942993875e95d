"""Attempts on files: secrets of the host, programs that run as root, packages that others share.

`mark` is a file of the host with the secret in it, `secrets` and `folders` are files and directories that a model must
not see, `files` what it must not change, `package` a module of its own environment.
"""

import errno
import os
import tempfile

from attempt import Refused, any_of, probe


@probe
def read_a_secret(world):
    """The host's passwords, a service's credentials, another model's copy, the node's records."""

    def read(path):
        with open(path, "rb", buffering=0) as file:
            return f"read {len(file.read(4096))} bytes of {path}"

    return any_of(world["secrets"], read)


@probe
def list_a_folder(world):
    def look(path):
        if not os.listdir(path):
            raise Refused("it is empty")
        return f"listed {path}"

    return any_of(world["folders"], look)


def is_writable(path):
    """Opens it for writing and writes nothing. A running program is busy, which is said only to who may write."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND))
    except OSError as error:
        if error.errno != errno.ETXTBSY:
            raise
    return f"may write {path}"


@probe
def write_a_file(world):
    return any_of(world["files"], is_writable)


def overwrite(path):
    """CVE-2019-5736: the program that root runs next, by the kernel's link to it, kept open until it is idle."""
    held = os.open(path, os.O_PATH)
    return any_of([path, f"/proc/self/fd/{held}"], is_writable)


@probe
def overwrite_its_own_program(_world):
    return overwrite("/proc/self/exe")


@probe
def overwrite_the_program_of_another(world):
    return any_of([1, os.getppid(), *world["processes"]], lambda pid: overwrite(f"/proc/{pid}/exe"))


@probe
def change_a_package(world):
    """A module of an environment: its file is a hard link to the cache that all environments share."""
    path = world["package"]
    beside = os.path.join(os.path.dirname(path), "sitecustomize.py")

    def append(way):
        with open(way, "ab") as file:
            file.write(b"\n# changed\n")

    ways = {
        "append": lambda: append(path),
        "append by a descriptor": lambda: append(f"/proc/self/fd/{os.open(path, os.O_RDONLY)}"),
        "cut": lambda: os.truncate(path, 0),
        "mode": lambda: os.chmod(path, 0o666),
        "times": lambda: os.utime(path),
        "rename": lambda: os.rename(path, path + "-"),
        "remove": lambda: os.unlink(path),
        "add": lambda: append(beside),
    }
    return any_of(ways, lambda way: ways[way]())


@probe
def link_a_package(world):
    """A second name for the same file, in a place of its own."""
    with tempfile.TemporaryDirectory(dir=world["scratch"]) as place:
        os.link(world["package"], os.path.join(place, "linked"))
    return "has a link to it"


@probe
def make_a_device(world):
    path = os.path.join(world["scratch"], "device")
    os.mknod(path, 0o20666, os.makedev(1, 3))
    try:
        os.close(os.open(path, os.O_RDWR))
    finally:
        os.unlink(path)
    return "made a device and opened it"


@probe
def open_a_device(world):
    """Opens devices of the host that a process could misuse; in `devices` is one that the host has."""
    usual = ("/dev/kmsg", "/dev/mem", "/dev/loop-control", "/dev/fuse", "/dev/kvm", "/dev/tty", "/dev/userfaultfd")
    return any_of([*usual, *world["devices"]], lambda path: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK)))
