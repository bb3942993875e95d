"""Data connections come and go, and there may be two at a time: one scheduler takes over from another."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import termios

import pytest


@pytest.mark.parametrize("define, concurrency", [("def", 1), ("def", 3), ("async def", 3)])
def test_a_hundred_connections_leave_nothing(start, define, concurrency):
    engine = start(f"{define} handle_request(request, context): return request.id", concurrency)
    engine.ready()

    def count() -> tuple[int, int]:
        pid = engine.process.pid
        return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))

    link = engine.attach()
    link.answer(0)
    first = count()
    for life in range(100):
        link.close()
        link = engine.attach()
        assert link.answer(life).json == f"r{life}"
        link.ask(1000)
    engine.await_true(lambda: count() == first, "the descriptors and threads of the first connection")


def test_a_second_attach_waits_until_the_first_has_ended(start):
    engine = start("def handle_request(request, context): return request.body.text")
    engine.ready()
    first, second = engine.attach(), engine.attach()
    second.ask(1, b"second")
    assert first.answer(1, b"first").json == "first"
    assert second.quiet(0.05)
    first.close()
    assert second.read().json == "second"


def unread(sock: socket.socket) -> int:
    """Bytes that the other side of a socket pair has not taken."""
    (size,) = struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))
    return int(size)


def waiting(define: str) -> str:
    """A handler that waits for a file, if it is asked for one."""
    return f"""
        import asyncio, os, time
        {define} handle_request(request, context):
            name = request.body.text
            while name.startswith("/") and not os.path.exists(name):
                {"time.sleep(0.005)" if define == "def" else "await asyncio.sleep(0.005)"}
            return name
        """


@pytest.mark.parametrize("define", ["def", "async def"])
def test_two_connections_share_the_concurrency_limit(start, tmp_path, define):
    engine = start(waiting(define), 2)
    engine.ready()
    first, second = engine.attach(), engine.attach()
    one, two = tmp_path / "one", tmp_path / "two"
    first.ask(1, str(one).encode())
    assert second.answer(1, b"beside").json == "beside"
    first.ask(2, str(two).encode())
    second.ask(2, b"waits")
    assert second.quiet(0.05)
    one.touch()
    assert first.read().json == str(one)
    assert second.read().json == "waits"
    # The places of a closed connection are free for the other one.
    second.ask(3, b"/nonexistent")
    second.ask(4, b"/nonexistent")
    second.close()
    assert first.answer(5, b"goes on").json == "goes on"
    two.touch()
    assert {first.read().number, first.answer(6, b"x").number} == {2, 6}
    assert engine.log() == ""


@pytest.mark.parametrize("define", ["def", "async def"])
def test_stop_waits_for_the_end_of_the_connections(start, tmp_path, define):
    engine = start(waiting(define), 2)
    engine.ready()
    first, second = engine.attach(), engine.attach()
    first.ask(1, str(tmp_path / "one").encode())
    assert second.answer(1, b"x").json == "x"
    engine.tell({"type": "stop"})
    engine.await_true(lambda: unread(engine.control) == 0, "the engine to have read that")
    second.close()
    (tmp_path / "one").touch()
    assert first.read().json == str(tmp_path / "one")
    assert engine.process.poll() is None
    first.close()
    assert engine.wait() == 0
