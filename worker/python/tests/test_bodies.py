"""Large bodies that come through a socket of their own."""

from __future__ import annotations

import hashlib
import os
import socket

import pytest
from peer import BODY_STREAM, CANCELLED, ERROR, HANDLER, RAISED, RESPONSE, request

MODES = [pytest.param("def", 1, id="serial"), pytest.param("def", 4, id="threads")]
ALL = [*MODES, pytest.param("async def", 4, id="tasks")]


@pytest.mark.parametrize("define, concurrency", ALL)
@pytest.mark.parametrize("known", [True, False])
def test_a_streamed_body_arrives_whole(serve, define, concurrency, known):
    body = os.urandom(3_000_001)
    loop = "async for" if define == "async def" else "for"
    _, link = serve(
        f"""
        import hashlib
        {define} handle_request(request, context):
            digest, longest = hashlib.sha1(), 0
            {loop} piece in request.body.stream():
                assert type(piece) is bytes
                longest = max(longest, len(piece))
                digest.update(piece)
            return [digest.hexdigest(), longest <= 1 << 20]
        """,
        concurrency,
    )
    upload = link.upload(1, **({"body_length": len(body)} if known else {}))
    upload.sendall(body)
    upload.close()
    assert link.read().json == [hashlib.sha1(body).hexdigest(), True]


def test_a_streamed_body_can_be_collected(serve):
    _, link = serve(
        """
        def handle_request(request, context):
            body = request.body
            return [body.json, body.text, len(body.bytes), b"".join(body.stream()).decode(), body.json is body.json]
        """
    )
    upload = link.upload(1, body_length=8)
    upload.sendall(b'{"a": 1}')
    upload.close()
    assert link.read().json == [{"a": 1}, '{"a": 1}', 8, '{"a": 1}', True]


@pytest.mark.parametrize("define, concurrency", MODES)
def test_a_body_that_ends_too_early_is_an_error(serve, define, concurrency):
    _, link = serve(
        """
        def handle_request(request, context):
            return sum(map(len, request.body.stream()))
        """,
        concurrency,
    )
    upload = link.upload(1, body_length=100)
    upload.sendall(b"x" * 99)
    upload.close()
    got = link.read()
    assert (got.kind, got.flags, got.code) == (ERROR, HANDLER, 400)
    assert "99 of 100 bytes" in got.json["message"]


@pytest.mark.parametrize("define, concurrency", ALL)
def test_a_body_nobody_reads_is_closed_after_the_answer(serve, define, concurrency):
    engine, link = serve(
        f"""
        {define} handle_request(request, context):
            if request.body is None:
                pass
            return len(request.id)
        """,
        concurrency,
    )
    link.answer(0)
    before = sorted(os.listdir(f"/proc/{engine.process.pid}/fd"))
    for number in range(1, 10):
        upload = link.upload(number)
        assert link.read().kind == RESPONSE
        with pytest.raises(OSError):
            while True:
                upload.sendall(b"x" * 65536)
        upload.close()
    engine.await_true(lambda: sorted(os.listdir(f"/proc/{engine.process.pid}/fd")) == before, "the same descriptors")


def test_a_body_that_a_task_still_reads_does_not_disturb_the_next(serve):
    """The next body has the same descriptor, and waits at it."""
    _, link = serve(
        """
        import asyncio
        left = []
        async def read(request):
            return sum([len(piece) async for piece in request.body.stream()])
        async def handle_request(request, context):
            if request.id == "r1":
                left.append(asyncio.create_task(read(request)))
                await asyncio.sleep(0.01)
                return "answered"
            if request.id == "r2":
                return await read(request)
            return left[0].cancelled()
        """,
        4,
    )
    first = link.upload(1)
    assert link.read().json == "answered"
    second = link.upload(2)
    assert link.quiet(0.05)
    second.sendall(b"body")
    second.close()
    assert link.read().json == 4
    assert link.answer(3).json is True
    first.close()


def test_descriptors_keep_their_order_among_pipelined_requests(serve):
    _, link = serve(
        """
        def handle_request(request, context):
            return request.body.text
        """
    )
    uploads = []
    for number in range(0, 30, 3):
        link.ask(number, b"plain")
        uploads += [(number + 1, link.upload(number + 1)), (number + 2, link.upload(number + 2))]
    for number, upload in reversed(uploads):
        upload.sendall(str(number).encode())
        upload.close()
    for number in range(30):
        got = link.read()
        assert (got.number, got.json) == (number, "plain" if number % 3 == 0 else str(number))


def test_a_handler_that_waits_for_its_body_is_cancelled(serve):
    engine, link = serve(
        """
        def handle_request(request, context):
            for piece in request.body.stream():
                print("got", flush=True)
        """
    )
    upload = link.upload(1)
    upload.sendall(b"begun")
    engine.await_true(lambda: engine.printed(), "waiting handler")
    link.cancel(1)
    assert link.read().flags == CANCELLED
    upload.close()


@pytest.mark.parametrize("define, concurrency", ALL)
def test_a_body_that_breaks_off_is_not_taken_for_a_whole_one(serve, define, concurrency):
    loop = "async for" if define == "async def" else "for"
    _, link = serve(
        f"""
        {define} handle_request(request, context):
            {loop} piece in request.body.stream():
                pass
            return "whole"
        """,
        concurrency,
    )
    ours, theirs = socket.socketpair()
    theirs.sendall(b"!")  # lies unread in our end, so that its close is a reset: what the scheduler does
    link.send(request(1, flags=BODY_STREAM), theirs.fileno())
    theirs.close()
    ours.sendall(b"half")
    ours.close()
    got = link.read()
    assert (got.kind, got.flags, got.code) == (ERROR, HANDLER, 400)
    assert "the body ended after" in got.json["message"]


@pytest.mark.parametrize("define, concurrency", MODES)
def test_a_model_without_room_for_descriptors_fails_that_request_alone(serve, define, concurrency):
    engine, link = serve(
        """
        import os, resource
        held = []
        def handle_request(request, context):
            what = request.headers["do"]
            if what == "hold":
                resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
                try:
                    while True:
                        held.append(os.open("/dev/null", os.O_RDONLY))
                except OSError:
                    return len(held)
            if what == "free":
                while held:
                    os.close(held.pop())
                return "free"
            return request.body.text
        """,
        concurrency,
    )
    link.answer(1, headers=[["do", "hold"]])
    upload = link.upload(2, headers=[["do", "read"]])
    upload.close()
    got = link.read()
    assert (got.number, got.kind, got.flags) == (2, ERROR, RAISED)
    engine.await_log("too many open files")
    assert link.answer(3, headers=[["do", "free"]]).json == "free"
    upload = link.upload(4, headers=[["do", "read"]])
    upload.sendall(b"again")
    upload.close()
    assert link.read().json == "again"


def test_requests_split_at_any_byte(serve):
    """Frames and their descriptors do not depend on how the stream is cut."""
    _, link = serve(
        """
        def handle_request(request, context):
            return request.body.text
        """
    )
    whole = request(1, b"plain")
    for cut in range(1, len(whole)):
        link.send(whole[:cut])
        link.send(whole[cut:])
        assert link.read().json == "plain"
    head = request(2, flags=BODY_STREAM)
    for cut in range(1, len(head)):
        ours, theirs = socket.socketpair()
        link.send(head[:cut], theirs.fileno())
        theirs.close()
        link.send(head[cut:])
        ours.sendall(b"streamed")
        ours.close()
        assert link.read().json == "streamed"


@pytest.mark.parametrize("define, concurrency", ALL)
def test_a_streamed_body_is_a_file(serve, define, concurrency, tmp_path):
    body = os.urandom(3_000_001)
    _, link = serve(
        f"""
        import hashlib, io, os, shutil
        {define} handle_request(request, context):
            file = request.body.file()
            assert isinstance(file, io.BufferedReader) and not file.seekable()
            assert os.fstat(file.fileno()).st_size == 0
            digest = hashlib.sha1(file.read(10))
            small = bytearray(7)
            assert file.readinto(small) == 7
            digest.update(small)
            with open({str(tmp_path / "copy")!r}, "wb") as copy:
                shutil.copyfileobj(file, copy)
            digest.update(open(copy.name, "rb").read())
            assert file.read() == b""
            return digest.hexdigest()
        """,
        concurrency,
    )
    upload = link.upload(1, body_length=len(body))
    upload.sendall(body)
    upload.close()
    assert link.read().json == hashlib.sha1(body).hexdigest()


@pytest.mark.skipif(not hasattr(os, "splice"), reason="os.splice came with Python 3.10")
def test_a_body_can_be_read_by_system_calls(serve, tmp_path):
    _, link = serve(
        f"""
        import os
        def handle_request(request, context):
            body = request.body.file().fileno()
            into, out = os.pipe()
            with open({str(tmp_path / "copy")!r}, "wb") as copy:
                while count := os.splice(body, out, 60_000):
                    os.splice(into, copy.fileno(), count)
            return open(copy.name).read()
        """
    )
    upload = link.upload(1, body_length=300_000)
    upload.sendall(b"abc" * 100_000)
    upload.close()
    assert link.read().json == "abc" * 100_000


def test_a_file_of_a_body_that_was_cut_off(serve):
    _, link = serve(
        """
        from omni import errors
        def handle_request(request, context):
            file = request.body.file()
            try:
                return len(file.read())
            except errors.IncompleteBody as error:
                return str(error)
        """
    )
    upload = link.upload(1, body_length=100)
    upload.sendall(b"x" * 99)
    upload.close()
    assert link.read().json == "the body ended after 99 of 100 bytes"


def test_closing_the_file_stops_the_sender(serve):
    _, link = serve(
        """
        def handle_request(request, context):
            with request.body.file() as file:
                first = file.raw.read(3)
            return first.decode()
        """
    )
    upload = link.upload(1)
    upload.sendall(b"abcdef")
    assert link.read().json == "abc"
    with pytest.raises(BrokenPipeError):
        upload.sendall(b"more")


@pytest.mark.parametrize("how", ["stream", "file"])
@pytest.mark.parametrize("define, concurrency", ALL)
@pytest.mark.parametrize("first", [b"", b"the beginning, "])
def test_a_body_that_is_handed_over_is_read_to_its_last_byte_and_no_further(serve, how, define, concurrency, first):
    loop = "async for" if define == "async def" and how == "stream" else "for"
    source = "request.body.stream()" if how == "stream" else "iter(lambda: request.body.file().raw.read(4096), b'')"
    _, link = serve(
        f"""
        {define} handle_request(request, context):
            whole = b""
            {loop} piece in {source}:
                whole += piece
            return whole.decode()
        """,
        concurrency,
    )
    client, connection = socket.socketpair()
    rest = b"the rest. " * 50_000
    upload = link.upload(1, body_length=len(first + rest), body_handed=True)
    connection.setblocking(False)
    if first:
        upload.sendall(first)
    socket.send_fds(upload, [b"\0"], [connection.fileno()])
    upload.close()
    client.settimeout(10)
    client.sendall(rest[:100_000])
    client.sendall(rest[100_000:] + b"the next request")
    assert link.read().json == (first + rest).decode()
    assert connection.recv(100) == b"the next request", "and the connection is still one that does not block"


def test_a_handed_connection_that_ends_too_early_is_an_error(serve):
    _, link = serve(
        """
        def handle_request(request, context):
            return len(request.body.bytes)
        """
    )
    client, connection = socket.socketpair()
    upload = link.upload(1, body_length=10, body_handed=True)
    socket.send_fds(upload, [b"abc\0"], [connection.fileno()])
    client.sendall(b"defg")
    client.close()
    assert "7 of 10 bytes" in link.read().json["message"]
