"""A scheduler that was taken over: its user, nothing else, in the node's runtime directory.

Exchanges folders of root for one of its own, which has links to a file of root under the names that root is about to
use, until its input ends. Then it prints how often each exchange came about."""

import contextlib
import ctypes
import json
import os
import pathlib
import select
import shutil
import sys

EXCHANGE = 2
HERE = -100  # AT_FDCWD
SUFFIXES = [".sock", ".gpu", ".json", ".json.new", ".new", ".exit", ".exit.new", ".tmp"]

user, run, precious = int(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
names = sys.argv[4:]
os.setgroups([])
os.setgid(user)
os.setuid(user)
os.chdir(run)
rename = ctypes.CDLL(None).renameat2

# Where a folder of its own can be: beside root's, or in what the node gives the scheduler.
places = [place for place in (run, run / "control") if os.access(place, os.W_OK)]
done = dict.fromkeys([*names, "moved"], 0)
decoys = [place / f"decoy-{os.getpid()}" for place in places]
for decoy in decoys:
    decoy.mkdir()


def plant(decoy, name):
    """Links under every name that an instance has, or may have next."""
    try:
        ids = {entry.split(".")[0] for entry in os.listdir(name)} | {"000000000000"}
    except OSError:
        ids = {"000000000000"}
    for suffix in SUFFIXES:
        for one in ids:
            with contextlib.suppress(OSError):
                os.symlink(precious, decoy / (one + suffix))


print("ready", flush=True)
turn = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    turn += 1
    for name in names:
        for decoy in decoys:
            if turn % 16 == 1:
                plant(decoy, name)
            for _ in range(2):
                if rename(HERE, os.fsencode(name), HERE, os.fsencode(decoy), EXCHANGE) == 0:
                    done[name] += 1
        try:
            os.rename(name, f"{name}.moved")
            done["moved"] += 1
            os.rename(f"{name}.moved", name)
        except OSError:
            pass
print(json.dumps(done))
for decoy in decoys:
    shutil.rmtree(decoy, ignore_errors=True)
