"""Attempts on other processes: a neighbour's, the node's, the machine's.

`processes` in the world are numbers as the host counts them; `secret` lies at `address` in the first one's memory, in
its environment and behind its descriptor `descriptor`.
"""

import ctypes
import errno
import os
import resource
import signal

from attempt import Refused, any_of, call, is_same, libc, probe


class Part(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@probe
def trace_a_process(world):
    seize = 0x4206  # the tracer's end lets go of it
    return any_of([*world["processes"], 1], lambda pid: call("ptrace", seize, pid, 0, 0) == 0 and f"traces {pid}")


def move_memory(name, pid, address, room):
    here, there = Part(ctypes.addressof(room), len(room)), Part(address, len(room))
    try:
        return call(name, pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    except OSError as error:
        if error.errno == errno.EFAULT:
            return 0  # allowed, and there is nothing at this address
        raise


@probe
def read_memory(world):
    def read(pid):
        room = ctypes.create_string_buffer(len(world["secret"]))
        move_memory("process_vm_readv", pid, world["address"], room)
        return is_same(room.raw, world["secret"]) if pid == world["processes"][0] else f"may read {pid}"

    return any_of([*world["processes"], 1], read)


@probe
def write_memory(world):
    def write(pid):
        # The same word again: the neighbour stays as it is.
        room = ctypes.create_string_buffer(world["secret"].encode(), len(world["secret"]))
        return f"wrote {move_memory('process_vm_writev', pid, world['address'], room)} bytes to {pid}"

    return any_of([*world["processes"], 1], write)


@probe
def read_memory_file(world):
    def read(pid):
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            if pid != world["processes"][0]:
                return f"opened the memory of {pid}"
            memory.seek(world["address"])
            return is_same(memory.read(len(world["secret"])), world["secret"])

    return any_of([*world["processes"], 1], read)


@probe
def read_environment(world):
    def read(pid):
        with open(f"/proc/{pid}/environ", "rb") as file:
            content = file.read()
        return is_same(content, world["secret"]) if pid == world["processes"][0] else f"read the environment of {pid}"

    return any_of([*world["processes"], 1], read)


@probe
def read_through_a_process(world):
    """By what `/proc` has of it: its root, its working directory, its open files."""

    def read(way):
        with open(way, "rb", buffering=0) as file:
            return is_same(file.read(4096), world["secret"])

    first, *others = world["processes"]
    ways = [f"/proc/{first}/fd/{world['descriptor']}"]
    ways += [f"/proc/{pid}/{way}{world['mark']}" for pid in [first, *others, 1] for way in ("root", "cwd/../../../..")]
    return any_of(ways, read)


@probe
def take_a_descriptor(world):
    def take(pid):
        process = call("pidfd_open", pid, 0)
        taken = call("pidfd_getfd", process, world["descriptor"] if pid == world["processes"][0] else 0, 0)
        if pid != world["processes"][0]:
            return f"has descriptor 0 of {pid}"
        return is_same(os.pread(taken, 4096, 0), world["secret"])

    return any_of([*world["processes"], 1], take)


@probe
def watch_a_process(world):
    return any_of(world["processes"], lambda pid: f"has pidfd {call('pidfd_open', pid, 0)} of {pid}")


@probe
def compare_kernel_objects(world):
    """Order of two processes' address spaces: addresses in the kernel."""
    memory = 1
    return any_of([*world["processes"], 1], lambda pid: f"order {call('kcmp', os.getpid(), pid, memory, 0, 0)}")


@probe
def signal_a_process(world):
    return any_of(world["processes"], lambda pid: os.kill(pid, signal.SIGCONT))


@probe
def signal_a_group(world):
    return any_of(world["processes"], lambda pid: os.killpg(pid, signal.SIGCONT))


@probe
def signal_everybody(_world):
    """All that this process may signal, but itself and process 1. From a sandbox's engine, that is nobody."""
    os.kill(-1, signal.SIGCONT)
    return "somebody heard"


@probe
def reschedule_a_process(world):
    allowed = os.sched_getaffinity(0)
    return any_of(world["processes"], lambda pid: os.sched_setaffinity(pid, allowed))


@probe
def change_a_limit(world):
    def change(pid):
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))

    return any_of(world["processes"], change)


@probe
def attach_shared_memory(world):
    number = libc.shmget(world["segment"], 0, 0)
    if number == -1:
        raise OSError(ctypes.get_errno(), "shmget")
    libc.shmat.restype = ctypes.c_void_p
    place = libc.shmat(number, None, 0o10000)  # SHM_RDONLY
    if place == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "shmat")
    return is_same(ctypes.string_at(place, len(world["secret"])), world["secret"])


@probe
def become_root(_world):
    def act(become):
        become()
        if os.getuid() != 0:
            raise Refused("still the same user")
        return "is root"

    return any_of([lambda: os.setuid(0), lambda: os.setresuid(0, 0, 0), lambda: os.setgroups([0])], act)
