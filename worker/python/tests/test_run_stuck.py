"""Local runs whose handler ignores its deadline, a change of its files and Ctrl-C."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal

from local import answered, ask, await_line, failure, manifest_is_read, running, write_answer, write_model

STUCK = """
import time
def handle_request(request, context):
    if request.body.json == "stuck":
        told = "begun"
        while True:
            try:
                if told:
                    print(told, flush=True)
                    told = None
                time.sleep(1)
            except BaseException as error:
                told = "caught " + type(error).__name__
    if request.body.json == "stream":
        return stream()
    return "well"
def stream():
    yield "a"
    while True:
        try:
            time.sleep(1)
        except BaseException:
            pass
"""


@contextlib.contextmanager
def stuck(tmp_path, *options, grace="100ms"):
    """A model that can be made to ignore everything."""
    directory = tmp_path / "moo"
    directory.mkdir()
    (directory / "omni.toml").write_text(f'[timeouts]\nrequest = "30s"\ncancel-grace = "{grace}"\n')
    write_model(directory, STUCK)
    with running(directory, *options) as (process, port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        with contextlib.closing(connection):
            yield process, connection, directory


@manifest_is_read
def test_a_handler_that_catches_everything_is_answered_for_and_given_up(tmp_path):
    with stuck(tmp_path) as (process, connection, _):
        status, _, body = ask(connection, "stuck", {"x-omni-timeout-ms": "200"})
        assert (status, json.loads(body)) == (504, failure(3007, "the request's deadline passed"))
        await_line(process.stderr, "the handler ignored its cancellation")
        stacks = ""
        while "loaded anew" not in stacks:
            stacks += process.stderr.readline()
            assert process.poll() is None
        assert "in handle_request" in stacks
        assert answered(connection.port) == "well"


@manifest_is_read
def test_a_stream_that_catches_everything_ends_at_its_deadline(tmp_path):
    with stuck(tmp_path) as (process, connection, _):
        status, _, body = ask(connection, "stream", {"x-omni-timeout-ms": "200"})
        late = b'data: {"error":{"message":"the request\'s deadline passed"}}\n\n'
        assert (status, body) == (200, b'data: {"response":"a"}\n\n' + late)
        while "loaded anew" not in process.stderr.readline():
            assert process.poll() is None
        assert answered(connection.port) == "well"


@manifest_is_read
def test_a_change_is_served_though_a_handler_is_stuck(tmp_path):
    with stuck(tmp_path, "--reload") as (process, connection, directory):
        connection.request("POST", "/ai/run/moo", '"stuck"')
        await_line(process.stdout, "begun")
        write_answer(directory, "new")
        await_line(process.stderr, "loaded anew")
        assert answered(connection.port) == "new"


@manifest_is_read
def test_the_second_interrupt_ends_a_stuck_run(tmp_path):
    with stuck(tmp_path, grace="20s") as (process, connection, _):
        connection.request("POST", "/ai/run/moo", '"stuck"')
        await_line(process.stdout, "begun")
        process.send_signal(signal.SIGINT)
        await_line(process.stdout, "caught KeyboardInterrupt")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130


@manifest_is_read
def test_requests_that_wait_have_their_deadline_too(tmp_path):
    with stuck(tmp_path, grace="20s") as (process, connection, _):
        connection.request("POST", "/ai/run/moo", '"stuck"')
        await_line(process.stdout, "begun")
        other = http.client.HTTPConnection("127.0.0.1", connection.port, timeout=20)
        with contextlib.closing(other):
            assert ask(other, "waits", {"x-omni-timeout-ms": "50"})[0] == 504
