"""Messages of a taken-over scheduler to the launcher. Prints the outcome of each: "ends" for the connection, else
the types of the answers.
"""

import json
import os
import socket
import sys

user, path, model, other, program = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5]
os.setgroups([])
os.setgid(user)
os.setuid(user)
PROTOCOL, PYTHON = int(sys.argv[6]), sys.argv[7]
MOST = 256 * 1024


def connect(hello=True):
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.settimeout(20)
    line.connect(path)
    if hello:
        say(line, type="hello", protocol=PROTOCOL)
    return line


def say(line, **message):
    line.send(json.dumps(message).encode())


def hear(line, *types):
    """Waits for one of these types; None at the end of the connection."""
    while True:
        try:
            packet = line.recv(MOST)
        except ConnectionResetError:
            return None
        if not packet:
            return None
        message = json.loads(packet)
        if message["type"] in types:
            return message


def snapshots():
    line, seen = connect(), {}
    while True:
        message = hear(line, "model", "scanned")
        if message["type"] == "scanned":
            return seen
        seen[message["name"]] = message["snapshot"]


def prepare(line, **change):
    message = dict(
        type="prepare", model=model, snapshot=snapshot, python=PYTHON, interpreter=None, require_hashes=False
    )
    say(line, **{**message, **change})
    return hear(line, "prepared", "prepare-failed")


seen = snapshots()
snapshot = seen[model]
environment = prepare(connect())["environment"]
START = dict(
    type="start",
    instance="0123456789ab",
    model=model,
    snapshot=snapshot,
    engine={"kind": "python", "environment": environment, "module": "model", "function": "handle_request"},
    memory_bytes=256 << 20,
    cpu_millis=1000,
    pids=64,
    tmp_bytes=1 << 20,
    cache_bytes=0,
    concurrency=1,
    host_network=False,
    env={},
    log_lines_per_second=10,
    note="",
)


def engine(**change):
    return {**START["engine"], **change}


def start(**change):
    line = connect()
    hear(line, "scanned")
    say(line, **{**START, **change})
    answer = hear(line, "started", "start-failed")
    if answer is None:
        return "ends"
    if answer["type"] == "started":
        say(line, type="kill", instance=answer["instance"])
        hear(line, "worker-gone")
    return answer["type"]


def after(*messages, hello=True, descriptors=()):
    """Outcome after these messages: the connection goes on when it still answers."""
    line = connect(hello)
    try:
        for message in messages:
            data = message if isinstance(message, bytes) else json.dumps(message).encode()
            socket.send_fds(line, [data], list(descriptors))
        if not hello:
            say(line, type="hello", protocol=PROTOCOL)
        say(line, type="kill", instance="ffffffffffff")
        return "goes on" if hear(line, "worker-gone") else "ends"
    except OSError:
        return "ends"


def asked(**change):
    line = connect()
    hear(line, "scanned")
    answer = prepare(line, **change)
    return answer["type"] if answer else "ends"


ids = ["../../x", "/etc/passwd", "0123456789ab/../x", "0123456789AB", "0123456789ab.sock", "", "0" * 4096]
null = os.open("/dev/null", os.O_RDWR)
print(
    json.dumps(
        {
            "a start as it should be": start(),
            "under another model's name": start(model=other),
            "ids": [start(instance=one) for one in ids],
            "snapshots": [start(snapshot=one) for one in ["../" * 8 + "etc", "/etc", "a" * 64, snapshot + "/.."]],
            "environments": [start(engine=engine(environment=one)) for one in ["../" * 8 + "etc", "/etc", "b" * 64]],
            "models": [start(model=one) for one in ["../" * 8 + "etc", "/etc", "a/../b", "", "a\n", "x" * 4096]],
            "modules": [start(engine=engine(module=one)) for one in ["../x", "/etc/passwd", "os;import x", ""]],
            "limits": [
                start(**one)
                for one in [
                    {"memory_bytes": 1 << 60},
                    {"memory_bytes": 0},
                    {"cpu_millis": 0},
                    {"pids": 0},
                    {"pids": 1 << 31},
                    {"tmp_bytes": 1 << 60},
                    {"cache_bytes": 1 << 60},
                    {"concurrency": 0},
                    {"log_lines_per_second": 0},
                    {"host_network": True},
                    {"env": {"A=B": "x"}},
                    {"env": {"A": "\0"}},
                    {"note": "x" * (65 << 10)},
                    {"gpu": {"uuid": "/dev/sda", "minor": 0, "limit_bytes": 1 << 30, "mode": "device"}},
                ]
            ],
            "no numbers": [start(**one) for one in [{"memory_bytes": -1}, {"pids": "many"}, {"cpu_millis": 1 << 40}]],
            "interpreters": [
                asked(interpreter=one) for one in [program, "/etc/shadow", "python3", "/proc/self/exe", "/bin/sh"]
            ],
            "prepared for others": [
                asked(snapshot="a" * 64),
                asked(model="../x", python="../../bin/sh"),
                asked(snapshot="../x"),
            ],
            "before hello": after(dict(START), {"type": "quit"}, hello=False),
            "twice hello": after({"type": "hello", "protocol": PROTOCOL}),
            "another release": after({"type": "hello", "protocol": PROTOCOL + 1, "oldest": PROTOCOL + 1}),
            "wrong order": after(
                {"type": "kept-all"}, {"type": "keep", "model": model, "snapshots": []}, {"type": "kept-all"}
            ),
            "kept paths": after({"type": "keep", "model": "../../x", "snapshots": ["../../etc"]}),
            "zygotes of nobody": after({"type": "end-zygotes", "model": "../../x"}),
            "no JSON": after(b"\xff\x00{"),
            "no message": after({"type": "own", "path": "/etc/shadow"}),
            "nothing": after(b" "),
            "deep": after(b"[" * 60000),
            "too long": after(b"x" * (129 * 1024)),
            "descriptors": after({"type": "end-zygotes", "model": "x"}, descriptors=[null] * 200),
        }
    )
)
