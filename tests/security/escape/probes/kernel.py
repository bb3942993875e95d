"""Attempts on the kernel: mounts, namespaces, control groups, and parts of it that were often broken."""

import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys
import tempfile

from attempt import Refused, any_of, call, probe

NEW_NAMESPACES = {"mount": 0x00020000, "user": 0x10000000, "pid": 0x20000000, "network": 0x40000000}
MS_REMOUNT, MS_BIND, MNT_DETACH = 32, 4096, 2
MEMINFO = b"/proc/meminfo"
# Files that show a group as a machine.
SHOWN = (MEMINFO, b"/proc/cpuinfo", b"/proc/stat", b"/proc/uptime", b"/sys/devices/system/cpu/online")


@probe
def mount_a_file_system(world):
    return call("mount", b"none", world["scratch"].encode(), b"tmpfs", 0, None) == 0 and "mounted"


@probe
def mount_by_descriptor(_world):
    return f"has a file system, descriptor {call('fsopen', b'tmpfs', 0)}"


@probe
def copy_a_mount(_world):
    clone = 1
    return f"has a mount, descriptor {call('open_tree', -100, b'/', clone)}"


@probe
def remount_the_system_writable(world):
    """`remount` is a mount of the system."""
    return call("mount", None, world["remount"].encode(), None, MS_REMOUNT | MS_BIND, None) == 0 and "remounted"


@probe
def uncover_a_shown_file(_world):
    def uncover(path):
        return call("umount2", path, MNT_DETACH) == 0 and f"the machine's own numbers are uncovered: {path}"

    return any_of(SHOWN, uncover)


@probe
def cover_a_shown_file(world):
    with tempfile.NamedTemporaryFile(dir=world["scratch"]) as own:
        source = own.name.encode()
        return any_of(SHOWN, lambda path: call("mount", source, path, None, MS_BIND, None) == 0 and f"covered: {path}")


@probe
def mount_control_groups(world):
    call("mount", b"none", world["scratch"].encode(), b"cgroup2", 0, None)
    return f"sees {len(os.listdir(world['scratch']))} entries"


@probe
def leave_the_control_group(world):
    """`groups` are files that take the processes of a group which is not this one's."""

    def leave(path):
        with open(path, "w") as procs:
            procs.write("0")
        return f"is in {path}"

    return any_of(world["groups"], leave)


@probe
def write_a_kernel_setting(_world):
    with open("/proc/sys/kernel/hostname", "w") as setting:
        setting.write("escaped")
    return "written"


@probe
def rename_the_host(_world):
    return call("sethostname", b"escaped", 7) == 0 and "renamed"


@probe
def enter_a_namespace(world):
    """Enters namespaces of other processes, by their files and by their numbers."""
    paths = [f"/proc/{pid}/ns/{kind}" for pid in [*world["processes"], 1] for kind in ("mnt", "net", "pid")]
    by_file = [lambda path=path: call("setns", os.open(path, os.O_RDONLY), 0) for path in paths]
    by_number = [lambda pid=pid: call("setns", call("pidfd_open", pid, 0), 0x00020000) for pid in world["processes"]]
    return any_of(by_file + by_number, lambda enter: enter() == 0 and "entered")


@probe
def make_a_namespace(_world):
    return any_of(NEW_NAMESPACES.values(), lambda flag: call("unshare", flag) == 0 and "is in a new namespace")


def born(pid):
    """Ends the child of a raw clone, which comes back from the call as this process does."""
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return f"has made process {pid}"


@probe
def begin_a_process_in_a_namespace(_world):
    return any_of(
        NEW_NAMESPACES.values(), lambda flag: born(call("clone", flag | signal.SIGCHLD, None, None, None, None))
    )


@probe
def begin_a_process_in_a_namespace_the_new_way(_world):
    def begin(flag):
        arguments = struct.pack("<8Q", flag, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
        return born(call("clone3", arguments, len(arguments)))

    return any_of(NEW_NAMESPACES.values(), begin)


@probe
def load_a_program_into_the_kernel(_world):
    """A map, which is what every use of bpf begins with."""
    array = struct.pack("<4I", 2, 4, 4, 1) + bytes(112)
    return f"has map {call('bpf', 0, array, len(array))}"


@probe
def use_io_uring(_world):
    return f"has ring {call('io_uring_setup', 1, ctypes.create_string_buffer(120))}"


@probe
def keep_an_asynchronous_context(_world):
    """Takes contexts of the machine's number, `fs.aio-max-nr`."""
    return call("io_setup", 1, ctypes.byref(ctypes.c_ulong())) == 0 and "has a context"


@probe
def give_a_socket_a_program(_world):
    """The kernel's memory for such programs is the machine's, `net.core.bpf_jit_limit`; one of either kind."""
    of_one, of_a_group = 26, 51
    accept_all = ctypes.create_string_buffer(struct.pack("<HBBI", 6, 0, 0, 0xFFFF))
    program = struct.pack("<HxxxxxxQ", 1, ctypes.addressof(accept_all))

    def attach(option):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            if option == of_a_group:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                sock.bind(("127.0.0.1", 0))
            sock.setsockopt(socket.SOL_SOCKET, option, program)
        return f"has a program by option {option}"

    return any_of((of_one, of_a_group), attach)


@probe
def handle_page_faults(_world):
    user_mode_only = 1
    return any_of([user_mode_only, 0], lambda flags: f"has descriptor {call('userfaultfd', flags)}")


@probe
def count_events(_world):
    clock = struct.pack("<2IQ", 1, 112, 0) + bytes(96)
    return f"has counter {call('perf_event_open', clock, 0, -1, -1, 0)}"


@probe
def keep_a_key(_world):
    process_keyring = -2
    return f"has key {call('add_key', b'user', b'omni-escape', b'x', 1, process_keyring)}"


@probe
def read_the_keyrings(_world):
    get_keyring_id, session = 0, -3
    return f"has keyring {call('keyctl', get_keyring_id, session, 1, 0, 0)}"


@probe
def open_by_number(_world):
    """CVE-2014-3519 and the like: a file of a file system by its number, whatever is mounted of it."""
    handle = ctypes.create_string_buffer(struct.pack("<Ii", 128, 0) + bytes(128))
    try:
        call("name_to_handle_at", -100, b"/usr", handle, ctypes.byref(ctypes.c_int()), 0)
    except OSError:
        handle = ctypes.create_string_buffer(struct.pack("<IiII", 8, 1, 2, 0))  # the root of an ext4
    return f"has descriptor {call('open_by_handle_at', os.open('/usr', os.O_RDONLY), handle, os.O_RDONLY)}"


@probe
def watch_the_file_system(_world):
    return f"has descriptor {call('fanotify_init', 0, os.O_RDONLY)}"


@probe
def watch_what_the_host_does_with_a_file(_world):
    """The files of `/usr` are the host's own."""
    return f"has descriptor {call('inotify_init1', 0)}"


@probe
def watch_what_the_host_does_in_a_directory(_world):
    directory = os.open("/usr", os.O_RDONLY)
    fcntl.fcntl(directory, fcntl.F_NOTIFY, fcntl.DN_ACCESS)
    return "has a watch"


@probe
def hold_up_who_opens_a_file(world):
    with tempfile.NamedTemporaryFile(dir=world["scratch"]) as own:
        fcntl.fcntl(own, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        return "has a lease"


@probe
def lock_a_file_that_others_see(_world):
    """A lock takes nothing but a descriptor that reads. A shared one, as this is tried in several places at a time."""
    with open(os.__file__, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return "has a lock"


@probe
def read_the_kernels_log(_world):
    size_of_buffer = 10
    return f"{call('syslog', size_of_buffer, None, 0)} bytes"


@probe
def change_the_personality(_world):
    no_random_addresses = 0x0040000
    return f"it was {call('personality', no_random_addresses)}"


@probe
def change_segments(_world):
    read = 0
    return f"{call('modify_ldt', read, ctypes.create_string_buffer(64), 64)} bytes"


@probe
def dump_core(world):
    """A child that raises its limit and crashes: prompts would be in the file, or go to the host's crash handler."""
    crash = (
        "import os, resource\n"
        "for limit in (resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_CORE)[1]):\n"
        "    try:\n"
        "        resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))\n"
        "        break\n"
        "    except (OSError, ValueError):\n"
        "        pass\n"
        f"os.chdir({world['scratch']!r})\n"
        "os.abort()\n"
    )
    pid = os.posix_spawn(sys.executable, [sys.executable, "-I", "-S", "-c", crash], os.environ)
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status):
        raise ValueError(f"the child did not crash: {status}")
    if not os.WCOREDUMP(status):
        raise Refused("no core was dumped")
    return "a core was dumped"


@probe
def widen_what_a_core_holds(_world):
    with open("/proc/self/coredump_filter", "w") as what:
        what.write("0x7f")
    return "written"


@probe
def have_memory_in_a_core(_world):
    """A handler of core dumps gets one whatever the limit is: there must be nothing in it."""
    with open("/proc/self/coredump_filter") as what:
        if int(what.read(), 16) == 0:
            raise Refused("no memory is dumped")
    return "memory is dumped"
