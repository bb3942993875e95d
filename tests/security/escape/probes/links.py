"""Traps for whoever makes the next sandbox as root: links in the place of what it mounts on, makes or writes to.

As a model it sets them wherever it can (the request is where they lead), and says where it could. `set_traps` does the
same below any other folder.
"""

import os

# Paths of a sandbox, and paths that a preparing process might create in a lasting folder.
THERE = ("/cache", "/cache/lost+found", "/tmp", "/tmp/home", "/dev", "/dev/shm", "/dev/null", "/etc", "/etc/passwd")
THERE += ("/gpu", "/home", "/model", "/model/model.py", "/omni", "/proc", "/proc/meminfo", "/run", "/usr", "/var/tmp")
MADE = ("/cache/model.py", "/cache/tmp", "/cache/omni", "/tmp/model", "/tmp/omni", "/tmp/.lock", "/dev/shm/omni")


def set_traps(below, target):
    trapped = []
    for place in THERE + MADE:
        path = below + place
        for remove in (os.rmdir, os.unlink, lambda path: os.rename(path, path + ".away")):
            try:
                remove(path)
                break
            except OSError:
                pass
        try:
            os.symlink(target, path)
            trapped.append(place)
        except OSError:
            pass
    return sorted(trapped)


def handle_request(request, _context):
    return set_traps("", request.body.json)
