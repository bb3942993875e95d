"""A shim for tests: speaks with the worker about GPU memory as the real one does, or as a hostile one would."""

import json
import socket
import struct
import time

CONTROL, ACCOUNT = "/gpu/control.sock", "/gpu/account"
EVICT, RESTORE, REPORT = 1, 2, 3
HEADER, SLOT = 4096, 128


def tell(**facts):
    """Writes a line for the test, in one piece: several processes write here."""
    os.write(1, json.dumps(facts).encode() + b"\n")


class Shim:
    """The other end of the worker's control socket, as the real shim speaks, and as it would not."""

    def __init__(self, managed=0, device=0, host=0):
        self.managed, self.resident, self.device, self.host = managed, managed, device, host
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(CONTROL)

    def packet(self, kind, number, moved=0, error=0):
        who = os.getpid() | error << 32
        return struct.pack("<9Q", kind, number, who, moved, 5, self.managed, self.resident, self.device, self.host)

    def hello(self):
        self.socket.send(self.packet(1, 0))
        return self

    def done(self, number, moved=0, error=0):
        self.socket.send(self.packet(2, number, moved, error))

    def next_command(self):
        """The next command: number, verb, bytes; None at the end of the connection."""
        packet = self.socket.recv(100)
        return struct.unpack("<3Q", packet) if packet else None

    def serve(self, count):
        """Carries out this many commands as a shim with ideal memory, and returns what they were."""
        seen = []
        for _ in range(count):
            number, verb, size = self.next_command()
            moved = {EVICT: min(size, self.resident), RESTORE: self.managed - self.resident, REPORT: 0}[verb]
            self.resident += {EVICT: -moved, RESTORE: moved, REPORT: 0}[verb]
            self.record()
            seen.append([verb, size])
            self.done(number, moved)
        return seen

    def record(self, slot=None):
        """Writes what it has into its slot of the account; slots are the processes' numbers here."""
        with open("/proc/self/stat") as own:
            stat = own.read().rsplit(")", 1)[1].split()
        words = [os.getpid(), int(stat[19]), 0, self.managed, self.managed - self.resident, self.device, self.host]
        with open(ACCOUNT, "r+b", buffering=0) as account:
            account.write(b"omnigpu2")
            account.seek(HEADER + (os.getpid() if slot is None else slot) * SLOT)
            account.write(struct.pack("<7Q", *words))
        return self

    def is_closed(self):
        """Waits for the worker to hang up."""
        self.socket.settimeout(20)
        try:
            while self.socket.recv(100):
                pass
        except ConnectionResetError:
            pass
        return True
