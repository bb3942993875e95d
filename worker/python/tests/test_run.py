"""`python -m omni run`: a model on a laptop answers as on a node."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys

import pytest
from local import (
    ENVIRONMENT,
    PACKAGE,
    answered,
    ask,
    await_line,
    failure,
    manifest_is_read,
    running,
    write_answer,
    write_model,
)

import omni

MODEL = """
import asyncio, os, time
from omni import Response, errors
KEY = os.environ.get("API_KEY", "not set")
def teardown(context):
    print("torn down", flush=True)
%s main(request, context):
    what = request.body.json
    if what == "raise":
        raise ValueError("secret")
    if what == "bytes":
        return Response(b"png", media_type="image/png")
    if what == "error":
        return Response.error(418, "short and stout")
    if what == "details":
        return Response({"d": 1}, status=422)
    if what == "stream":
        return Response.stream(events())
    if what == "own":
        return Response.stream(iter([b": ping\\n\\n", b"id: 7\\n\\n"]), media_type="text/event-stream")
    if what == "key":
        return KEY
    if what == "slow":
        try:
            WAIT
        except (errors.DeadlineExceeded, asyncio.CancelledError) as error:
            print("heard", type(error).__name__, flush=True)
            raise
    return {"got": what, "id": request.id, "secrets": "authorization" in request.headers}
%s events():
    yield "a"
    yield {"b": 1}
"""
MANIFEST = """
[model]
entrypoint = "entry:main"
[env]
API_KEY = "4711"
[limits]
body = "1KiB"
[timeouts]
request = "900ms"
"""


@pytest.fixture(params=["def", "async def"])
def server(request, tmp_path):
    directory = tmp_path / "moo"
    directory.mkdir()
    code = MODEL.replace("WAIT", "time.sleep(20)" if request.param == "def" else "await asyncio.sleep(20)")
    if sys.version_info >= (3, 11):
        (directory / "omni.toml").write_text(MANIFEST)
        (directory / "entry.py").write_text(code % (request.param, request.param))
    else:
        code = code.replace("main(", "handle_request(")
        (directory / "model.py").write_text(code % (request.param, request.param))
    with running(directory) as (process, port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.process = process
        yield connection
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out.splitlines()[-1]) == (0, "torn down")
        assert "Traceback" not in err or "secret" in err or "the deadline passed while the handler was here" in err


def test_the_local_run_answers_as_a_node_does(server):
    status, kind, body = ask(server, "hi", {"x-request-id": "i", "authorization": "Bearer x"})
    wrapped = {"result": {"got": "hi", "id": "i", "secrets": False}, "success": True, "errors": [], "messages": []}
    assert (status, kind, json.loads(body)) == (200, "application/json", wrapped)
    assert ask(server, "bytes") == (200, "image/png", b"png")
    status, _, body = ask(server, "error")
    assert (status, json.loads(body)) == (418, failure(5004, "short and stout"))
    status, _, body = ask(server, "raise")
    assert (status, json.loads(body)) == (500, failure(3043, "the model failed on this request"))
    assert ask(server, "stream") == (
        200,
        "text/event-stream",
        b'data: {"response":"a"}\n\ndata: {"b":1}\n\ndata: [DONE]\n\n',
    )
    assert ask(server, "own") == (200, "text/event-stream", b": ping\n\nid: 7\n\n")
    status, _, body = ask(server, "details")
    told = failure(5004, "the model answered with status 422")
    assert (status, json.loads(body)) == (422, {**told, "result": {"d": 1}})
    server.request("POST", "/client/v4/accounts/-/ai/run/moo", b"not json")
    answer = server.getresponse()
    assert (answer.status, json.loads(answer.read())["errors"][0]["code"]) == (400, 5004)


@manifest_is_read
def test_the_manifest_is_applied(server):
    assert json.loads(ask(server, "key")[2])["result"] == "4711"
    status, _, body = ask(server, "slow")
    assert (status, json.loads(body)) == (504, failure(3007, "the request's deadline passed"))
    line = server.process.stdout.readline()
    assert line in ("heard DeadlineExceeded\n", "heard CancelledError\n")
    assert ask(server, "slow", {"x-omni-timeout-ms": "50"})[0] == 504
    assert ask(server, "x" * 1024)[::2] == (
        413,
        json.dumps(failure(3006, "the request's body is larger than this model's limit of 1024 bytes"))
        .replace(": ", ":")
        .replace(", ", ",")
        .encode(),
    )


def test_bodies_in_chunks_and_other_methods(server):
    pieces = iter([b'"in ', b"chunks", b'"'])
    server.request("POST", "/ai/run/moo", pieces, {"transfer-encoding": "chunked"}, encode_chunked=True)
    assert json.loads(server.getresponse().read())["result"]["got"] == "in chunks"
    for method, path, status, code in [
        ("GET", "/ai/run/moo", 405, 7001),
        ("PUT", "/ai/run/moo", 405, 7001),
        ("POST", "/elsewhere", 404, 7000),
        ("POST", "/ai/run/other", 404, 5007),
    ]:
        server.request(method, path)
        answer = server.getresponse()
        assert (answer.status, json.loads(answer.read())["errors"][0]["code"]) == (status, code)
        assert (answer.headers["allow"] == "POST") == (status == 405)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as broken:
        broken.sendall(b"POST /ai/run/moo HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\nhalf")
        broken.shutdown(socket.SHUT_WR)
        assert broken.recv(1) == b""
    assert ask(server, "after")[0] == 200


def test_a_request_that_a_node_refuses(server):
    def status(**headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        server.request("POST", "/ai/run/moo", b'"hi"', headers)
        answer = server.getresponse()
        body = json.loads(answer.read())
        assert answer.headers["x-request-id"]
        return answer.status, body["errors"][0]["code"] if body["errors"] else 0

    port = server.port
    for host in ("localhost", f"LOCALHOST:{port}", f"127.0.0.1:{port}", "127.9.9.9", "[::1]:1", "moo.localhost.", None):
        assert status(**({} if host is None else {"host": host})) == (200, 0), host
    for host in ("evil.com", f"evil.com:{port}", "10.0.0.8", "0.0.0.0", "localhost.evil.com", "127.0.0.1.evil.com"):
        assert status(host=host) == (421, 7003), host
    assert status(host="user@localhost") == (400, 5004)
    assert status(origin="http://evil.com") == (403, 9109)
    assert status(sec_fetch_site="cross-site") == (403, 9109)
    assert status(host=f"localhost:{port}", origin=f"http://localhost:{port}") == (200, 0)
    assert status(content_encoding="gzip") == (415, 5004)
    assert status(content_encoding="identity") == (200, 0)


def test_every_answer_has_its_requests_id(server):
    for body, given in (("hi", "mine"), ("raise", "mine"), ("stream", "mine"), ("hi", "not usable"), ("hi", None)):
        server.request("POST", "/ai/run/moo", json.dumps(body), {} if given is None else {"x-request-id": given})
        answer = server.getresponse()
        answer.read()
        said = answer.headers["x-request-id"]
        assert said == given if given == "mine" else len(said) == 36


@manifest_is_read
def test_the_log_says_where_the_deadline_passed(server):
    assert ask(server, "slow", {"x-request-id": "late"})[0] == 504
    lines = [await_line(server.process.stderr, "WARNING [late] ")]
    while "DeadlineExceeded" not in lines[-1] and "CancelledError" not in lines[-1]:
        lines.append(await_line(server.process.stderr, "WARNING [late] "))
    assert lines[0] == "WARNING [late] the deadline passed while the handler was here\n"
    assert 'entry.py", line' in lines[2] and "_run" not in lines[2] and "asyncio" not in lines[2]


def test_variables_of_a_node_have_a_value(tmp_path):
    directory = tmp_path / "moo"
    directory.mkdir()
    write_model(
        directory,
        "import os\nprint('\\ud800')\ndef handle_request(request, context): return dict(os.environ)\n",
    )
    unset = ("USER", "LOGNAME", "XDG_CACHE_HOME", "TORCH_HOME")
    with pytest.MonkeyPatch.context() as patch:
        for name in unset:
            patch.delitem(ENVIRONMENT, name, raising=False)
        with running(directory, HF_HOME="/elsewhere", HOME=str(tmp_path)) as (_, port):
            got = answered(port)
    cache = str(tmp_path / ".cache")
    told = {name: got[name] for name in ("USER", "LOGNAME", "HF_HOME", "XDG_CACHE_HOME", "TORCH_HOME", "PWD")}
    assert told == {
        "USER": "model",
        "LOGNAME": "model",
        "HF_HOME": "/elsewhere",
        "XDG_CACHE_HOME": cache,
        "TORCH_HOME": f"{cache}/torch",
        "PWD": str(directory),
    }


def test_a_change_is_served(tmp_path):
    directory = tmp_path / "moo"
    directory.mkdir()
    write_answer(directory, "one")
    with running(directory, "--reload") as (process, port):
        assert answered(port) == "one"
        write_answer(directory, "two")
        await_line(process.stderr, "loaded anew")
        assert answered(port) == "two"
        write_model(directory, "def handle_request(request, context) return 3\n")
        await_line(process.stderr, "loaded anew")
        while "SyntaxError" not in process.stderr.readline():
            assert process.poll() is None
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        status, _, body = ask(connection, 1)
        why = "the model cannot start: the terminal of the local run says why"
        assert (status, json.loads(body)) == (503, failure(3040, why))
        connection.request("GET", "/v1/models")
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["error"]["message"]) == (503, why)
        connection.close()
        write_answer(directory, "three")
        await_line(process.stderr, "loaded anew")
        assert answered(port) == "three"


@pytest.mark.parametrize(
    ("cwd", "path", "python_path"),
    [
        (lambda model: model.parent, "moo", str(PACKAGE)),  # the model's directory is relative
        (lambda _: PACKAGE.parent, None, PACKAGE.name),  # the package's is
        (lambda _: PACKAGE, None, ""),  # the package is found in the current directory
        (lambda model: model, ".", str(PACKAGE)),
    ],
)
def test_a_reload_keeps_relative_paths(tmp_path, cwd, path, python_path):
    directory = tmp_path / "moo"
    directory.mkdir()
    write_answer(directory, "one")
    with running(directory, "--reload", path=path, cwd=cwd(directory), PYTHONPATH=python_path) as (process, port):
        assert answered(port) == "one"
        for word in ("three", "fifteen"):
            write_answer(directory, word)
            await_line(process.stderr, "loaded anew")
            assert answered(port) == word


@manifest_is_read
def test_weights_are_the_folder_that_the_manifest_names(tmp_path):
    directory, weights = tmp_path / "moo", tmp_path / "weights"
    directory.mkdir()
    code = "def handle_request(request, context):\n    return (context.weights_dir / 'w.txt').read_text()\n"
    (directory / "model.py").write_text(code)
    (directory / "omni.toml").write_text(f'[weights]\nsource = "file://{weights}"\n')
    command = [sys.executable, "-m", "omni", "run", str(directory), "--port", "0"]
    missing = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=20, check=False)
    assert missing.returncode == 1
    assert missing.stderr == f"there is no folder {weights} here, which [weights] of omni.toml names: make it\n"
    weights.mkdir()
    (weights / "w.txt").write_text("tensor")
    with running(directory) as (_process, port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        status, _, body = ask(connection, None)
        assert (status, json.loads(body)["result"]) == (200, "tensor")
        connection.close()
    (directory / "omni.toml").write_text('[weights]\nsource = "s3://bucket/llama"\n')
    remote = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=20, check=False)
    assert remote.returncode == 1
    assert "omni.toml: `weights.source` (line 2): only a node fetches weights" in remote.stderr


def test_the_command_line():
    def run(*arguments):
        command = [sys.executable, "-m", "omni", *arguments]
        return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=20)

    assert run("--version").stdout == f"omni {omni.__version__}\n"
    assert run().returncode == 2
    wrong = run("run", "/no/such/directory")
    assert (wrong.returncode, "is not a directory" in wrong.stderr) == (2, True)


def test_a_port_in_use_is_one_line(tmp_path):
    directory = tmp_path / "moo"
    directory.mkdir()
    write_model(directory, "def handle_request(request, context):\n    return 1\n")
    with running(directory) as (_, port):
        command = [sys.executable, "-m", "omni", "run", str(directory), "--port", str(port)]
        second = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert second.returncode == 1
    assert second.stderr.startswith(f"port {port} cannot be used: ") and second.stderr.count("\n") == 1, second.stderr


@pytest.mark.parametrize("name", ["x-omni-timeout-ms", "x-omni-priority"])
@pytest.mark.parametrize("value", ["1.5", "-5", "soon", "\u0661"])
def test_a_header_that_is_no_whole_number_is_refused(tmp_path, name, value):
    directory = tmp_path / "moo"
    directory.mkdir()
    write_model(directory, "def handle_request(request, context):\n    return 1\n")
    with running(directory) as (_, port):
        server = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        status, _, body = ask(server, 1, [(name, value.encode().decode("latin-1"))])
        server.close()
    message = f"the header `{name}` has to be a whole number, such as 1"
    assert (status, json.loads(body)) == (400, failure(5004, message))
