"""`python -m omni run`: a model on a laptop answers as on a node."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import omni

PACKAGE = Path(omni.__file__).parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(PACKAGE)}
MODEL = """
from omni import Response
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
    if what == "stream":
        return Response.stream(events())
    return {"got": what, "id": request.id}
%s events():
    yield "a"
    yield {"b": 1}
"""


@pytest.fixture(params=["def", "async def"])
def server(request, tmp_path):
    directory = tmp_path / "moo"
    directory.mkdir()
    entry = "entry:main"
    if sys.version_info >= (3, 11):
        (directory / "omni.toml").write_text(f'[model]\nentrypoint = "{entry}"\n')
        (directory / "entry.py").write_text(MODEL % (request.param, request.param))
    else:
        code = MODEL.replace("main(", "handle_request(")
        (directory / "model.py").write_text(code % (request.param, request.param))
    command = [sys.executable, "-m", "omni", "run", str(directory), "--port", "0"]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    assert "/ai/run/moo" in line, process.stderr.read()
    yield http.client.HTTPConnection("127.0.0.1", int(line.split(":")[2].split("/")[0]), timeout=20)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "torn down\n")
    assert "secret" in err


def ask(server, body, headers=()):
    server.request("POST", "/ai/run/moo", json.dumps(body), dict(headers))
    answer = server.getresponse()
    return answer.status, answer.headers["content-type"], answer.read()


def test_it_answers_as_a_node_does(server):
    status, kind, body = ask(server, "hi", {"x-request-id": "i"})
    wrapped = {"result": {"got": "hi", "id": "i"}, "success": True, "errors": [], "messages": []}
    assert (status, kind, json.loads(body)) == (200, "application/json", wrapped)
    assert ask(server, "bytes") == (200, "image/png", b"png")
    status, _, body = ask(server, "error")
    assert (status, json.loads(body)["errors"]) == (418, [{"code": 5004, "message": "short and stout"}])
    status, _, body = ask(server, "raise")
    assert (status, b"secret" in body, json.loads(body)["success"]) == (500, False, False)
    assert ask(server, "stream") == (
        200,
        "text/event-stream",
        b'data: {"response":"a"}\n\ndata: {"b":1}\n\ndata: [DONE]\n\n',
    )
    server.request("POST", "/", b"not json")
    assert server.getresponse().status == 400


def test_the_command_line():
    def run(*arguments):
        command = [sys.executable, "-m", "omni", *arguments]
        return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=20)

    assert run("--version").stdout == f"omni {omni.__version__}\n"
    assert run().returncode == 2
    wrong = run("run", "/no/such/directory")
    assert (wrong.returncode, "is not a directory" in wrong.stderr) == (2, True)
