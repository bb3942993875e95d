"""Weights from servers that we did not write: moto, rclone, and a hub that huggingface_hub takes for its own."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import boto3
import huggingface_hub
import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(os.environ.get("OMNI_BIN", ROOT / "target/debug")) / "omni-weights"
TOOLS = Path(sys.executable).parent
KEYS = ("key-of-the-test", "secret-of-the-test")
SECRET = "\n".join(KEYS)
LARGE = os.urandom(1 << 20) * 40 + b"the end"
FILES = {"config.json": b"{}", "sub/model.bin": LARGE, "sub/a b+c%20d.txt": b"odd", "empty": b""}

Fetch = Callable[..., Any]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def fetch(tmp_path: Path) -> Fetch:
    """Runs omni-weights; gives its list of files and the folder of its parts, or its last words."""
    (tmp_path / "files").mkdir()

    def run(source: str, secret: str | None = None, **more: Any) -> Any:
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        order: dict[str, Any] = {"source": source, "files": {}, "redirects": [], "most_bytes": 1 << 40, "boot": "boot"}
        order |= {"private_hosts": ["127.0.0.1"]} | more
        (tmp_path / "order.json").write_text(json.dumps(order))
        env = {} if secret is None else {"OMNI_WEIGHTS_SECRET": secret}
        command = [PROGRAM, tmp_path / "order.json", work, tmp_path / "files"]
        ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
        last = json.loads(ended.stdout.splitlines()[-1])
        if ended.returncode != 0:
            return last["message"]
        listed = json.loads((work / "fetched.json").read_text())["files"]
        return {file["path"]: (file, (work / f"{file['part']}.part").read_bytes()) for file in listed}

    return run


def assert_all(fetched: Any) -> None:
    assert isinstance(fetched, dict), fetched
    assert {path: content for path, (_, content) in fetched.items()} == FILES
    assert all(file["sha256"] == sha256(content) for file, content in fetched.values())


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def serving(command: list[str], port: int) -> Iterator[str]:
    """A server until its end, and its address."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            deadline = time.monotonic() + 60
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    assert server.poll() is None and time.monotonic() < deadline
                    time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


def put_all(endpoint: str) -> None:
    client = boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id=KEYS[0], aws_secret_access_key=KEYS[1], region_name="us-east-1"
    )
    client.create_bucket(Bucket="bucket")
    for path, content in FILES.items():
        client.put_object(Bucket="bucket", Key=f"models/m/{path}", Body=content)
    client.put_object(Bucket="bucket", Key="models/m2/other", Body=b"other")


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    port = free_port()
    with serving([str(TOOLS / "moto_server"), "-p", str(port)], port) as endpoint:
        put_all(endpoint)
        yield endpoint


@pytest.fixture(scope="module")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Answers ranges with status 200, and checks signatures."""
    port, folder = free_port(), tmp_path_factory.mktemp("rclone")
    command = [str(TOOLS / "rclone"), "serve", "s3", "--config", "/dev/null", "--addr", f"127.0.0.1:{port}"]
    with serving([*command, "--auth-key", ",".join(KEYS), str(folder)], port) as endpoint:
        put_all(endpoint)
        yield endpoint


@pytest.mark.parametrize("server", ["moto", "rclone"])
def test_objects_of_a_bucket(server: str, fetch: Fetch, request: pytest.FixtureRequest) -> None:
    endpoint = request.getfixturevalue(server)
    assert_all(fetch("s3://bucket/models/m", SECRET, endpoint=endpoint))
    one = fetch("s3://bucket/models/m/sub/model.bin", SECRET, endpoint=endpoint, sha256=sha256(LARGE))
    assert one["model.bin"][0]["verified"] and one["model.bin"][1] == LARGE
    listed = {"sub/a b+c%20d.txt": sha256(b"odd"), "config.json": None}
    some = fetch("s3://bucket/models/m", SECRET, endpoint=endpoint, files=listed)
    assert {path: file["verified"] for path, (file, _) in some.items()} == {
        "sub/a b+c%20d.txt": True,
        "config.json": False,
    }
    assert "there is no" in fetch("s3://bucket/models/absent", SECRET, endpoint=endpoint)
    assert "there is no" in fetch("s3://bucket/models/m", SECRET, endpoint=endpoint, files={"absent": None})
    assert "another content" in fetch(
        "s3://bucket/models/m/config.json", SECRET, endpoint=endpoint, sha256=sha256(b"other")
    )


def test_a_wrong_key_is_refused(rclone: str, fetch: Fetch) -> None:
    wrong = f"{KEYS[0]}\nanother-secret"
    assert "answers 403" in fetch("s3://bucket/models/m", wrong, endpoint=rclone)
    assert "answers 400" in fetch("s3://bucket/models/m", endpoint=rclone)  # without a signature


COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's API that clients need. Large files lie on another path, behind a redirect."""

    protocol_version = "HTTP/1.1"
    token = "Bearer token-of-the-test"

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path, _, _ = self.path.partition("?")
        if path.startswith("/cdn/"):
            assert "authorization" not in self.headers
            self.content(LARGE, '"cdn"')
        elif self.headers.get("authorization") != self.token:
            self.answer(401, b"{}")
        elif re.fullmatch(r"/api/models/org/name(/revision/(main|" + COMMIT + "))?", path):
            siblings = [{"rfilename": path} for path in FILES]
            self.json({"id": "org/name", "modelId": "org/name", "sha": COMMIT, "siblings": siblings, "tags": []})
        elif path == f"/api/models/org/name/tree/{COMMIT}":
            self.json([self.entry(path, content) for path, content in FILES.items()])
        else:
            name = unquote(path.removeprefix(f"/org/name/resolve/{COMMIT}/"))
            self.file(FILES.get(name))

    def file(self, content: bytes | None) -> None:
        fields = {"X-Repo-Commit": COMMIT}
        if content is None:
            self.answer(404, b"{}")
        elif content is LARGE:
            place = f"http://localhost:{self.server.server_port}/cdn/large"  # type: ignore[attr-defined]
            linked = {"X-Linked-Etag": f'"{sha256(LARGE)}"', "X-Linked-Size": str(len(LARGE))}
            self.answer(302, b"", {**fields, **linked, "Location": place, "ETag": '"x"'})
        else:
            self.content(content, f'"{self.blob(content)}"', fields)

    @staticmethod
    def blob(content: bytes) -> str:
        return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()

    def entry(self, path: str, content: bytes) -> dict[str, Any]:
        entry = {"type": "file", "path": path, "size": len(content), "oid": self.blob(content)}
        if content is LARGE:
            entry["lfs"] = {"oid": sha256(content), "size": len(content), "pointerSize": 1}
        return entry

    def json(self, value: Any) -> None:
        self.answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def content(self, content: bytes, etag: str, fields: dict[str, str] | None = None) -> None:
        fields = {"ETag": etag, "Accept-Ranges": "bytes", **(fields or {})}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        if asked and content:
            first, last = int(asked[1]), min(int(asked[2] or len(content)), len(content) - 1)
            fields["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            self.answer(206, content[first : last + 1], fields)
        else:
            self.answer(200, content, fields)

    def answer(self, status: int, body: bytes, fields: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (fields or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_a_hub_gives_both_clients_the_same(hub: str, fetch: Fetch, tmp_path: Path) -> None:
    token = Hub.token.removeprefix("Bearer ")
    path = huggingface_hub.snapshot_download("org/name", endpoint=hub, token=token, cache_dir=tmp_path / "hub")
    theirs = {str(file.relative_to(path)): file.read_bytes() for file in Path(path).rglob("*") if file.is_file()}
    assert theirs == FILES
    assert "not listed as `redirects`" in fetch("hf://org/name", token, endpoint=hub)
    elsewhere = {"redirects": ["localhost"], "private_hosts": ["127.0.0.1", "localhost"]}
    for source in ("hf://org/name", f"hf://org/name@{COMMIT}"):
        ours = fetch(source, token, endpoint=hub, **elsewhere)
        assert_all(ours)
        assert ours["sub/model.bin"][0]["verified"] and not ours["config.json"][0]["verified"]
    some = fetch("hf://org/name", token, endpoint=hub, files={"sub/model.bin": None}, **elsewhere)
    assert list(some) == ["sub/model.bin"]
    assert "answers 401" in fetch("hf://org/name", endpoint=hub)
    assert "there is no" in fetch("hf://org/name@absent", token, endpoint=hub)
    assert "there is no hf://org/name/absent" in fetch("hf://org/name", token, endpoint=hub, files={"absent": None})
