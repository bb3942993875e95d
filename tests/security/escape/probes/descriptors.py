"""Attempts by what is open already: the class of CVE-2024-21626, where a directory of the host stayed open.

The working directory is an open directory too. `mark` in the world is a file of the host with the secret in it.
"""

import contextlib
import os
import socket
import stat
import tempfile

from attempt import Refused, any_of, is_same, probe

# Descriptors of an engine: standard input, two pipes for its log, and its sockets; an event loop brings its own.
ALLOWED = ("/dev/null", "pipe:[", "socket:[", "anon_inode:[eventpoll]", "anon_inode:[eventfd]")


def own():
    """Number and target of every open descriptor, without the one that lists them."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            yield int(name), os.readlink(f"/proc/self/fd/{name}")


def is_nameless_unix(number):
    """A socket that leads to its other end alone: not to a port, and to no name that others could use."""
    with socket.socket(fileno=os.dup(number)) as sock:
        return sock.family == socket.AF_UNIX and not sock.getsockname()


@probe
def use_a_leaked_descriptor(_world):
    """The exact inventory: anything that is not on the list."""
    leaked = [f"{number} is {target}" for number, target in own() if not target.startswith(ALLOWED)]
    leaked += [
        f"{number} is a socket with a name"
        for number, target in own()
        if target.startswith("socket:[") and not is_nameless_unix(number)
    ]
    if leaked:
        return ", ".join(leaked)
    raise Refused("only what is on the list is open")


@probe
def climb_by_a_descriptor(world):
    """From every open directory upwards, to a file of the host."""

    def climb(number):
        directory = os.open(f"/proc/self/fd/{number}", os.O_PATH)
        for _ in range(32):
            try:
                with open(os.open(world["mark"][1:], os.O_RDONLY, dir_fd=directory), "rb") as file:
                    return is_same(file.read(), world["secret"])
            except (FileNotFoundError, PermissionError):
                directory = os.open("..", os.O_PATH, dir_fd=directory)
        raise Refused("not found")

    return any_of([number for number, _ in own()], climb)


def read_mark(path, world):
    with open(path, "rb") as file:
        return is_same(file.read(), world["secret"])


@probe
def climb_from_the_working_directory(world):
    ways = (
        "/proc/self/cwd",
        "/proc/self/cwd/../../../../..",
        "/proc/self/root",
        "/proc/thread-self/root/..",
        "../" * 32,
    )
    return any_of(ways, lambda way: read_mark(way + world["mark"], world))


@probe
def climb_from_a_removed_directory(world):
    """A directory that has no name any more: where `..` leads is up to the kernel."""
    before = os.getcwd()
    place = tempfile.mkdtemp(dir=world["scratch"])
    os.chdir(place)
    try:
        os.rmdir(place)
        return any_of(["", "../" * 32], lambda way: read_mark(f"/proc/self/cwd/{way}{world['mark'][1:]}", world))
    finally:
        os.chdir(before)


@probe
def climb_out_of_a_new_root(world):
    """The classic way out of chroot: a root below the working directory, and then up."""
    with tempfile.TemporaryDirectory(dir=world["scratch"]) as place:
        directory = os.open("/", os.O_RDONLY)
        os.chroot(place)
        os.fchdir(directory)
        for _ in range(32):
            os.chdir("..")
        os.chroot(".")
        return read_mark(world["mark"], world)


@probe
def send_a_directory_to_itself(world):
    """A descriptor passed over a socket gives no more access than opening it."""
    one, other = socket.socketpair()
    with one, other:
        directory = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
        socket.send_fds(one, [b"x"], [directory])
        _, [got], _, _ = socket.recv_fds(other, 1, 1)
        assert stat.S_ISDIR(os.fstat(got).st_mode)
        with open(os.open("../" * 8 + world["mark"][1:], os.O_RDONLY, dir_fd=got), "rb") as file:
            return is_same(file.read(), world["secret"])
