"""The wait for a server with the OpenAI API to be healthy, and what is said of one that is not."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from pathlib import Path

import pytest

from omni._engine.openai.server import Server

DOUBLE = (Path(__file__).parent / "openai_double.py").read_text(encoding="utf-8")
SERVE = [sys.executable, "{model_dir}/model.py", "{socket}"]
SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ([*SLEEPS, "{socket}"], "there is no socket at /"),
        ([*SLEEPS, "{port}"], "it does not listen on port "),
        (["env", "DOUBLE_LOADS=60", *SERVE], 'answers `/health` with status 503: {"status": "ok"}'),
    ],
)
def test_a_server_that_is_never_healthy_is_given_up_with_its_problem(start, monkeypatch, command, problem):
    monkeypatch.setenv("OMNI_STARTUP_SECONDS", "1")
    engine = start(DOUBLE, engine={"kind": "openai", "command": command})
    heard = engine.hear()
    assert (heard["type"], heard["phase"]) == ("failed", "setup"), heard
    assert "the server was not healthy 0.75 s after its start: " in heard["message"] and problem in heard["message"]
    assert engine.wait() == 1
    assert "most recent call" not in engine.log()


def test_the_body_of_a_health_check_is_read(tmp_path):
    """A server that is hung up on before it has written its answer reports that as a fault."""
    path = str(tmp_path / "sock")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    server = Server(["unused", "{socket}"], "", None)
    server.address = path

    def serve():
        connection, _ = listener.accept()
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 503 Busy\r\ncontent-length: 7\r\n\r\n")
        threading.Event().wait(0.1)
        connection.sendall(b"loading")  # EPIPE, if nobody reads any more
        connection.close()

    async def run():
        served = asyncio.get_running_loop().run_in_executor(None, serve)
        problem = await server.problem()
        await served
        return problem

    assert asyncio.run(run()) == "the server answers `/health` with status 503: loading"
    listener.close()
