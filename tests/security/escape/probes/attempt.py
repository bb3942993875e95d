"""Attempts to get out of a sandbox: what a probe is, and how its outcome is told.

Every probe runs twice: inside a model, where it must be refused, and as a plain program without walls (`control.py`),
where it must succeed. A probe that succeeds nowhere proves nothing. Plain Python without dependencies, for any Linux.

A probe takes the world, which is what the test knows and tells (a victim's process number, paths of the host), and
returns evidence of its success. The kernel's refusal is an `OSError`; `Refused` is for when every call worked and yet
nothing was reached. Anything else is a defect of the probe, and fails both runs.
"""

import ctypes
import errno
import platform

PROBES = {}

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

# Numbers of x86-64 below 424, which are the same everywhere from there on.
CALLS = {
    "socketpair": 53,
    "clone": 56,
    "ptrace": 101,
    "syslog": 103,
    "personality": 135,
    "modify_ldt": 154,
    "pivot_root": 155,
    "mount": 165,
    "umount2": 166,
    "sethostname": 170,
    "add_key": 248,
    "keyctl": 250,
    "unshare": 272,
    "perf_event_open": 298,
    "fanotify_init": 300,
    "name_to_handle_at": 303,
    "open_by_handle_at": 304,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "io_setup": 206,
    "inotify_init1": 294,
    "bpf": 321,
    "userfaultfd": 323,
    "io_uring_setup": 425,
    "open_tree": 428,
    "fsopen": 430,
    "pidfd_open": 434,
    "clone3": 435,
    "pidfd_getfd": 438,
}


class Refused(Exception):
    """Every call worked, and nothing was reached."""


def probe(function):
    """Adds an attempt to the table, under its own name."""
    assert function.__name__ not in PROBES, function.__name__
    PROBES[function.__name__] = function
    return function


def call(name, *arguments):
    """A raw system call; every argument is passed at its full width."""
    assert platform.machine() == "x86_64", "the table of numbers is for x86-64"
    wide = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(CALLS[name]), *wide)
    if result == -1:
        raise OSError(ctypes.get_errno(), name)
    return result


def any_of(targets, act):
    """Result of the first success; without one, the last refusal."""
    refusal = None
    for target in targets:
        try:
            return act(target) or f"it worked: {target}"
        except (OSError, Refused) as error:
            refusal = error
    if refusal is None:
        raise ValueError("there is nothing to try it on")
    raise refusal


def is_same(found, secret):
    """Evidence that the secret was read."""
    if secret.encode() not in (found if isinstance(found, bytes) else found.encode()):
        raise Refused("something else was read")
    return "the secret was read"


def outcome(name, world):
    """How one attempt ended: `succeeded`, `refused` or `broken`, with the evidence or the reason."""
    try:
        evidence = PROBES[name](world)
    except OSError as error:
        return {"refused": errno.errorcode.get(error.errno, repr(error))}
    except Refused as error:
        return {"refused": str(error)}
    except Exception as error:
        return {"broken": repr(error)}
    return {"succeeded": str(evidence)} if evidence else {"broken": "it returned no evidence"}
