"""A model's files that are named like modules of Python's library, all of them at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from peer import CHUNK, ERROR, RAISED, RESPONSE

from omni._engine import siblings

if not hasattr(sys, "stdlib_module_names"):
    pytest.skip("this Python does not list its library", allow_module_level=True)

TAKEN = sorted(
    name
    for name in sys.stdlib_module_names - set(sys.builtin_module_names) - siblings._BEGINNING
    if not name.startswith("__") and siblings.FrozenImporter.find_spec(name) is None
)
MODEL = """
import token, traceback
import email.mime
import json as data
from queue import WORDS
import logging
import time

OWN = [token.WORDS, traceback.WORDS, email.WORDS, email.mime.WORDS, data.WORDS, WORDS, logging.WORDS]

DEF handle_request(request, context):
    import tokenize
    what = request.body.text
    if what == "log":
        context.logger.info("logger-was-here")
        return [OWN, tokenize.WORDS, time.strptime("2026", "%Y").tm_year, str(context.cache_dir.name)]
    if what == "stream":
        return iter(["a", "b"])
    raise ValueError("boom-was-here")
"""
RUNNERS = {
    "serial": ("def", 1),
    "threads": ("def", 4),
    "tasks": ("async def", 4),
}


def fill(directory: Path, names: list[str]) -> None:
    """Writes a file for each name, and for some a package; each prints its own name."""
    for name in names:
        if name in ("email", "json"):
            (directory / name).mkdir()
            (directory / name / "__init__.py").write_text("WORDS = __name__.rpartition('.')[2]\n")
        else:
            (directory / f"{name}.py").write_text("WORDS = __name__.rpartition('.')[2]\n")
    if "email" in names:
        (directory / "email" / "mime.py").write_text("from . import WORDS as outer\nWORDS = outer + '.mime'\n")


@pytest.mark.parametrize("origin", ["alone", "forked"], indirect=True)
@pytest.mark.parametrize("runner", RUNNERS)
def test_library_and_model_get_their_own_modules(start, tmp_path, runner):
    define, concurrency = RUNNERS[runner]
    directory = tmp_path / "m0"
    directory.mkdir()
    fill(directory, TAKEN)
    engine = start(MODEL.replace("DEF", define), concurrency)
    engine.ready()
    link = engine.attach()
    for number in (1, 2):
        got = link.answer(number, b"raise")
        assert (got.kind, got.flags, got.code) == (ERROR, RAISED, 500)
        engine.await_log(f"[r{number}] ValueError: boom-was-here")
    got = link.answer(3, b"log")
    assert got.kind == RESPONSE
    own = ["token", "traceback", "email", "email.mime", "json", "queue", "logging"]
    assert got.json == [own, "tokenize", 2026, "m0"]
    engine.await_log("INFO [r3] logger-was-here")
    link.ask(4, b"stream")
    assert [got.kind for got in link.read_until_last(4)].count(CHUNK) == 2


@pytest.mark.parametrize(
    "name", ["token", "tokenize", "string", "textwrap", "linecache", "traceback", "logging", "ast"]
)
def test_one_file_that_nothing_imports_changes_nothing(start, tmp_path, name):
    code = MODEL.partition("import time")[2].replace("OWN = [token", "OWN = 1  # ").replace("DEF", "def")
    engine = start(
        "import time\n" + code.replace("    import tokenize\n", "").replace("tokenize.WORDS", "1"), boot=False
    )
    (engine.directory / f"{name}.py").write_text("WORDS = 1\n")
    engine.tell(engine.boot)
    engine.ready()
    link = engine.attach()
    assert link.answer(1, b"raise").code == 500
    engine.await_log("[r1] ValueError: boom-was-here")
    assert link.answer(2, b"log").code == 200
    engine.await_log("INFO [r2] logger-was-here")


def test_the_entry_point_may_have_such_a_name(start):
    engine = start("", boot=False)
    (engine.directory / "code.py").write_text(
        "from queue import Queue\ndef handle_request(request, context): return 5\n"
    )
    engine.tell({**engine.boot, "engine": {**engine.boot["engine"], "module": "code"}})
    engine.ready()
    assert engine.attach().answer(1).json == 5


def test_installed_packages_get_the_library(start, tmp_path):
    """A package that is not the model's imports `queue` and `sched` for the first time when the model asks for it."""
    (tmp_path / "site" / "package").mkdir(parents=True)
    (tmp_path / "site" / "package" / "__init__.py").write_text(
        "import queue, sched\nmade = [queue.Queue, sched.scheduler]\n"
    )
    code = f"""
    import sys
    sys.path.append({str(tmp_path / "site")!r})
    import package, queue
    def handle_request(request, context):
        return [len(package.made), queue.WORDS]
    """
    engine = start(code, boot=False)
    fill(engine.directory, ["queue", "sched"])
    engine.tell(engine.boot)
    engine.ready()
    assert engine.attach().answer(1).json == [2, "queue"]


def test_only_modules_are_siblings(tmp_path):
    (tmp_path / "json").mkdir()  # a folder of data
    (tmp_path / "token.txt").write_text("")
    (tmp_path / "model.py").write_text("")
    (tmp_path / "time.py").write_text("")
    assert siblings._named_like_the_library(str(tmp_path)) == frozenset()
    (tmp_path / "json" / "__init__.py").write_text("")
    assert siblings._named_like_the_library(str(tmp_path)) == {"json"}
    assert siblings._named_like_the_library(str(tmp_path / "missing")) == frozenset()


def test_the_local_run_starts_in_the_models_own_directory(tmp_path):
    """`cd MODEL; python -m omni run .`: the program's own imports are not the model's files."""
    fill(tmp_path, ["argparse", "http", "uuid", "gettext", "socketserver"])
    (tmp_path / "model.py").write_text("import argparse\nraise RuntimeError(argparse.WORDS)\n")
    command = [sys.executable, "-m", "omni", "run", ".", "--port", "0"]
    env = {"PYTHONPATH": str(Path(__file__).parent.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "RuntimeError: argparse" in done.stderr
