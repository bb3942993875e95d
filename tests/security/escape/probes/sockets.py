"""Attempts to reach others by a socket: the node's, a neighbour's, the service manager's, the machine's."""

import errno
import os
import socket

from attempt import any_of, call, probe


def connect(family, address):
    kinds = [socket.SOCK_STREAM]
    if family == socket.AF_UNIX:
        kinds += [socket.SOCK_SEQPACKET, socket.SOCK_DGRAM]

    def with_kind(kind):
        with socket.socket(family, kind) as sock:
            sock.settimeout(5)
            sock.connect(address)
        return f"connected to {address!r}"

    return any_of(kinds, with_kind)


@probe
def connect_by_path(world):
    return any_of(world["paths"], lambda path: connect(socket.AF_UNIX, path))


@probe
def connect_by_abstract_name(world):
    return any_of(world["names"], lambda name: connect(socket.AF_UNIX, "\0" + name))


@probe
def connect_by_port(world):
    return any_of(world["ports"], lambda port: connect(socket.AF_INET, ("127.0.0.1", port)))


@probe
def speak_as_the_service(world):
    """To the service manager: a forged message could have it restart the node, or believe another main process."""
    told = [os.environ["NOTIFY_SOCKET"]] if "NOTIFY_SOCKET" in os.environ else []

    def speak(address):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"STOPPING=1\nSTATUS=forged", "\0" + address[1:] if address.startswith("@") else address)
        return f"was heard at {address}"

    return any_of(told + world["notify"], speak)


@probe
def listen_on_the_wire(_world):
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW):
        return "has a packet socket"


@probe
def forge_packets(_world):
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP):
        return "has a raw socket"


@probe
def hear_of_the_hosts_devices(_world):
    events, all_groups = 15, 1
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, events) as kernel:
        kernel.bind((0, all_groups))
        return "hears of devices"


@probe
def reach_a_family_by_a_pair(_world):
    """The code of families that no sandbox needs. Few of them make pairs, and a kernel may lack them: its own answer
    about the family shows that it was asked, and has looked for a module."""

    def pair(family):
        try:
            call("socketpair", family, socket.SOCK_STREAM, 0, bytes(8))
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EOPNOTSUPP):
                raise
            return f"the kernel looked for family {family}"
        return f"has a pair of family {family}"

    return any_of([socket.AF_TIPC, socket.AF_VSOCK], pair)
