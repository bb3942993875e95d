"""The recipes of the documentation: each model is served by the local run, and its client prints what the page says.

Models whose packages are large run with the interpreter of an example in `models/` that has them.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from local import ENVIRONMENT, await_line, manifest_is_read

from omni.testing import TestClient

ROOT = Path(__file__).parents[3]
RECIPES = ROOT / "docs" / "recipes"
EXAMPLES = {"chat": "llama", "embeddings": "embeddings", "transcription": "speech", "image": "thumbnail"}
"""Examples by the recipes that have their packages."""
BLOCK = re.compile(r"^`([\w./]+)`[^\n]*:\n\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OUTPUT = re.compile(r"^Output:\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
pytestmark = manifest_is_read


def blocks(page):
    """Files of a page by their paths, and the output that it promises."""
    text = (RECIPES / f"{page}.md").read_text()
    files = {path: content for path, _, content in BLOCK.findall(text)}
    (output,) = OUTPUT.findall(text)
    assert len(files) + 1 == text.count("```") / 2, "every block is a file or the output"
    return files, output


def interpreter(page):
    """The interpreter that has the packages of a page."""
    if page not in EXAMPLES:
        return sys.executable
    python = ROOT / ".omni" / "models" / EXAMPLES[page] / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{python} is not there: `make setup` makes it")
    return str(python)


def test_every_page_is_tested():
    assert sorted(page.stem for page in RECIPES.glob("*.md")) == sorted([*EXAMPLES, "cog", "fastapi"])


@contextlib.contextmanager
def served(page, folder):
    """The port of a local run of a page's model, whose files lie in the folder, and the path of its log."""
    files, _ = blocks(page)
    for path, content in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(content)
    (model,) = {Path(path).parts[0] for path in files if "/" in path}
    command = [interpreter(page), "-m", "omni", "run", model, "--port", "0"]
    log = folder / "log"
    with log.open("w") as errors:
        run = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        yield int(await_line(run.stdout, f"/ai/run/{model}").split(":")[2].split("/")[0]), log
    finally:
        run.send_signal(signal.SIGKILL)
        run.communicate(timeout=20)


@pytest.mark.parametrize("page", [*EXAMPLES, "cog", "fastapi"])
def test_a_recipe_works_as_its_page_says(page, tmp_path):
    pytest.importorskip("openai")
    pytest.importorskip("requests")
    _, output = blocks(page)
    if page == "transcription":
        assets = Path(interpreter(page)).parents[1].glob("lib/*/site-packages/moonshine_voice/assets/beckett.wav")
        shutil.copy(next(assets), tmp_path / "speech.wav")
    with served(page, tmp_path) as (port, log):
        client = (tmp_path / "client.py").read_text().replace(":8000", f":{port}")
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        told = subprocess.run(
            [sys.executable, "-c", client], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
        )
        assert told.stdout == output, (told.stderr, log.read_text())


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
MISTAKES = {
    "chat": [
        ("completions", {"prompt": "moo"}, "prompt"),
        ("chat/completions", {"messages": [{"role": "user", "content": "moo"}], "tools": [TOOL]}, "tools"),
        ("chat/completions", {"messages": [{"role": "user", "content": "moo " * 4000}]}, "messages"),
    ],
    "embeddings": [
        ("embeddings", {"input": "moo", "dimensions": 10}, "dimensions"),
        ("embeddings", {"input": [1000000]}, "input"),
    ],
}
"""Requests that the models of the pages refuse: route, body, and the parameter that is named."""


@pytest.mark.parametrize("page", MISTAKES)
def test_the_model_of_a_recipe_refuses_a_clients_mistakes(page, tmp_path):
    with served(page, tmp_path) as (port, log):
        for route, body, parameter in MISTAKES[page]:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            with contextlib.closing(connection):
                model = {"chat": "chat", "embeddings": "vectors"}[page]
                headers = {"content-type": "application/json"}
                connection.request("POST", f"/v1/{route}", json.dumps({"model": model, **body}), headers)
                answer = connection.getresponse()
                told = json.loads(answer.read())
            assert (answer.status, told["error"]["param"]) == (400, parameter), (told, log.read_text())


@pytest.mark.parametrize("page", EXAMPLES)
def test_requirements_are_those_of_the_example(page):
    files, _ = blocks(page)
    example = ROOT / "models" / EXAMPLES[page]
    for path, content in files.items():
        name = Path(path).name
        if name in ("requirements.txt", "overrides.txt"):
            assert set(content.split("\n")) <= set((example / name).read_text().split("\n")), path


def test_the_fastapi_app_and_the_model_answer_alike(tmp_path):
    clients = pytest.importorskip("fastapi.testclient", exc_type=ImportError)
    files, _ = blocks("fastapi")
    before = {}
    exec(compile(files["app.py"].replace("__future__", ""), "app.py", "exec"), before)
    (tmp_path / "model.py").write_text(files["mood/model.py"])
    with clients.TestClient(before["app"]) as old, TestClient(tmp_path) as new:
        for body in ({"text": "good fine"}, {"text": "a bad day", "scale": 2}, {"text": "Hm"}):
            told = old.post("/score", json=body)
            answer = new.run(json=body)
            assert answer.status == told.status_code
            assert (answer.json if answer.status == 200 else answer.text) == told.json().get("detail", told.json())
        body = {"text": "good bad day"}
        assert new.run(json={**body, "explain": True}).text == old.post("/explain", json=body).text
        assert (old.post("/score", json={"scale": 1}).status_code, new.run(json={"scale": 1}).status) == (422, 400)


def test_the_cog_predictor_and_the_model_answer_alike(tmp_path):
    pytest.importorskip("cog")
    files, _ = blocks("cog")
    before = {}
    exec(compile(files["predict.py"], "predict.py", "exec"), before)
    old = before["Predictor"]()
    old.setup()
    (tmp_path / "model.py").write_text(files["says/model.py"])
    with TestClient(tmp_path) as new:
        for mood, times in (("calm", 1), ("cheerful", 3)):
            told = list(old.predict(prompt="Moo", mood=mood, times=times))
            assert list(new.stream(json={"prompt": "Moo", "mood": mood, "times": times})) == told
