"""Local runs for the tests, ended whatever happens, and what is asked of them."""

from __future__ import annotations

import contextlib
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
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(PACKAGE), "PYTHONDONTWRITEBYTECODE": "1"}
manifest_is_read = pytest.mark.skipif(sys.version_info < (3, 11), reason="the manifest is read from Python 3.11 on")


def await_line(stream, text):
    """The next line, which has `text`; the run's end is a failure."""
    line = stream.readline()
    assert text in line
    return line


@contextlib.contextmanager
def running(directory, *options, path=None, cwd=None, **environment):
    """The process and its port; ended, whatever happens. `path` is how the command line names the directory."""
    command = [sys.executable, "-m", "omni", "run", path or str(directory), "--port", "0", *options]
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**ENVIRONMENT, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a background job ignores it
    )
    try:
        line = await_line(process.stdout, f"/ai/run/{directory.name}")
        yield process, int(line.split(":")[2].split("/")[0])
    finally:
        process.kill()
        process.communicate(timeout=20)


@contextlib.contextmanager
def serving(directory, text, manifest="", **files):
    """A connection to a local run of the model `moo`. `files`: others of its directory, with `__` for a dot."""
    directory = directory / "moo"
    directory.mkdir()
    write_model(directory, text)
    if manifest:
        (directory / "omni.toml").write_text(manifest)
    for name, content in files.items():
        (directory / name.replace("__", ".")).write_text(content)
    with running(directory) as (_, port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        with contextlib.closing(connection):
            yield connection


def ask(server, body, headers=()):
    server.request("POST", "/ai/run/moo", json.dumps(body), dict(headers))
    answer = server.getresponse()
    return answer.status, answer.headers["content-type"], answer.read()


def failure(code, message):
    return {"result": None, "success": False, "errors": [{"code": code, "message": message}], "messages": []}


def write_model(directory, text):
    """Puts the file there whole."""
    (directory / "new").write_text(text)
    os.replace(directory / "new", directory / "model.py")


def write_answer(directory, word):
    """A model that answers with this word."""
    write_model(directory, f"def handle_request(request, context): return {word!r}\n")


def answered(port):
    """The answer of the model."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with contextlib.closing(connection):
        return json.loads(ask(connection, 1)[2])["result"]


def multipart(fields, boundary="x"):
    """A form of names, further parameters and contents."""
    parts = [
        f'--{boundary}\r\ncontent-disposition: form-data; name="{name}"{extra}\r\n\r\n'.encode() + content + b"\r\n"
        for name, extra, content in fields
    ]
    return b"".join(parts) + f"--{boundary}--\r\n".encode()
