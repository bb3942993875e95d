"""The control run: every probe once more, as root and without the sandbox, where it must succeed.

Called by the test in namespaces of its own (`unshare`), so that what succeeds here changes nothing of the machine; the
interpreter is the model's. Standard input is a JSON object: `scratch`, an empty folder, and what only the test can
prepare. It makes the rest of the probes' world itself: a neighbour in its sight, a directory left open, a package that
shares its file with a cache, a file mounted over `/proc/meminfo`.
"""

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "probes"))

import table  # noqa: E402,F401  it fills PROBES
from attempt import PROBES, call, outcome  # noqa: E402
from kernel import MEMINFO, MS_BIND, NEW_NAMESPACES  # noqa: E402


def bring_up_loopback():
    up_and_running, set_flags = 0x41, 0x8914
    with socket.socket() as sock:
        fcntl.ioctl(sock, set_flags, struct.pack("16sH14x", b"lo", up_and_running))


def neighbour(scratch):
    """A victim as a plain process, and what it says of itself."""
    folder = scratch / "neighbour"
    folder.mkdir()
    victim = subprocess.Popen(
        [sys.executable, "-B", HERE / "probes/victim.py", folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    return victim, json.loads(victim.stdout.readline())


def shared_package(scratch):
    """A module as uv installs it where the disk has no copies: one file, in the cache and in an environment."""
    cache, environment = scratch / "cache", scratch / "environment"
    for folder in (cache, environment):
        folder.mkdir()
    (cache / "package.py").write_text("WORD = 'one'\n")
    os.link(cache / "package.py", environment / "package.py")
    return cache / "package.py", environment / "package.py"


def manager(scratch):
    """A socket as a service manager has one, open to who can see it."""
    path = str(scratch / "notify")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(path)
    return sock, path


def cover_meminfo(scratch):
    cover = scratch / "meminfo"
    cover.write_text("MemTotal: 1 kB\n")
    call("mount", str(cover).encode(), MEMINFO, None, MS_BIND, None)


def mount_point(scratch):
    place = scratch / "system"
    place.mkdir()
    call("mount", str(place).encode(), str(place).encode(), None, MS_BIND, None)
    return place


def alone(name, world):
    """The outcome of a probe in a process of its own, whose mounts are its own too."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        call("unshare", NEW_NAMESPACES["mount"])
        os.write(writer, json.dumps(outcome(name, world)).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return json.loads(said) if said else {"broken": "its process ended without a word"}


def main():
    given = json.load(sys.stdin)
    scratch = Path(given["scratch"])
    bring_up_loopback()
    victim, facts = neighbour(scratch)
    cached, package = shared_package(scratch)
    _listening, notify = manager(scratch)
    cover_meminfo(scratch)
    os.open("/", os.O_RDONLY | os.O_DIRECTORY)  # left open
    room = scratch / "room"
    room.mkdir()
    world = {
        **facts,
        "scratch": str(room),
        "processes": [victim.pid],
        "paths": [facts["path"]],
        "names": [facts["name"]],
        "ports": [facts["port"]],
        "notify": [notify],
        "secrets": ["/etc/shadow"],
        "folders": [str(scratch)],
        "files": [str(package)],
        "package": str(package),
        "devices": ["/dev/null"],
        "groups": given["groups"],
        "remount": str(mount_point(scratch)),
    }
    results = {name: alone(name, world) for name in PROBES}
    # Without a sandbox, a change of one environment is a change of all.
    assert "changed" in cached.read_text(), "the package does not share its file with the cache"
    json.dump(results, sys.stdout)
    victim.kill()
    victim.wait()


main()
