"""The life of an engine: boot, ready or failed, stop, and models that misbehave."""

from __future__ import annotations

import os
import time

import pytest
from peer import ERROR, LIMIT, RAISED, RESPONSE

ECHO = """
def handle_request(request, context):
    return request.body.text
"""


@pytest.mark.parametrize(
    "code, phase, exit_code, text",
    [
        ("import nothing_like_this", "import", 78, "No module named 'nothing_like_this'"),
        ("def broken(:\n  pass", "import", 78, "SyntaxError"),
        ("import sys\nsys.exit(3)", "import", 78, "SystemExit: 3"),
        ("raise KeyboardInterrupt", "import", 78, "KeyboardInterrupt"),
        ("x = 1", "entrypoint", 78, "model has no function `handle_request`"),
        ("handle_request = 5", "entrypoint", 78, "is of type int, not a function"),
        (
            "def handle_request(request): return 1",
            "entrypoint",
            78,
            "`handle_request` cannot be called with (request, context)",
        ),
        ("def handle_request(a, b, c): return 1", "entrypoint", 78, "write `def handle_request(request, context):`"),
        ("def handle_request(a, b, *, c): return 1", "entrypoint", 78, "write `def handle_request(request, context):`"),
        (
            "def handle_batch(requests): return []",
            "entrypoint",
            78,
            "`handle_batch` cannot be called with (requests, context)",
        ),
        (ECHO + "\ndef setup(context): raise OSError('no weights')", "setup", 1, "OSError: no weights"),
        (ECHO + "\nasync def setup(context): raise OSError('no weights')", "setup", 1, "OSError: no weights"),
        (ECHO + "\ndef healthcheck(context): return False", "healthcheck", 1, "returned False"),
        (ECHO + "\ndef healthcheck(context): raise OSError('sick')", "healthcheck", 1, "OSError: sick"),
        ("raise ValueError('\\x00' * 100_000)", "import", 78, "\0\0\0"),
        ("raise ValueError('\\ud800')", "import", 78, "ValueError"),
    ],
)
def test_a_model_that_cannot_be_served(start, code, phase, exit_code, text):
    engine = start(code)
    heard = engine.hear()
    assert (heard["type"], heard["phase"]) == ("failed", phase)
    assert text in heard["message"]
    assert "_engine" not in heard["message"]
    assert len(heard["message"].encode()) <= 32 * 1024
    assert engine.wait() == exit_code


def test_a_module_that_is_not_there(start):
    engine = start(ECHO, engine={"kind": "python", "module": "other", "function": "handle_request"})
    assert engine.hear()["message"].endswith("ModuleNotFoundError: No module named 'other'")
    assert engine.wait() == 78


def test_a_module_of_a_package_in_the_model_directory(start):
    engine = start("", boot=False)
    (engine.directory / "pkg").mkdir()
    (engine.directory / "pkg" / "__init__.py").write_text("")
    (engine.directory / "helper.py").write_text("NAME = 'helper'")
    (engine.directory / "pkg" / "entry.py").write_text(
        "import os, helper\nasync def main(request, context): return [helper.NAME, os.getcwd(), os.environ['PWD']]"
    )
    entry = {"kind": "python", "module": "pkg.entry", "function": "main"}
    boot = {"type": "boot", "model": "m", "instance": "0", "engine": entry}
    where = str(engine.directory)
    rest = {"model_dir": where, "cache_dir": "/c", "weights_dir": "/w", "device": "cuda", "concurrency": 1}
    engine.tell({**boot, **rest})
    assert engine.ready() == "concurrent"
    assert engine.attach().answer(1).json == ["helper", where, where]


def test_modules_of_the_model_that_are_named_like_those_of_the_library(start):
    engine = start("", boot=False)
    for name in ("select", "signal", "threading", "selectors", "struct", "socket"):
        (engine.directory / f"{name}.py").write_text("raise RuntimeError('the model has its own')")
    (engine.directory / "model.py").write_text("def handle_request(request, context): return 1")
    where = str(engine.directory)
    entry = {"kind": "python", "module": "model", "function": "handle_request"}
    boot = {"type": "boot", "model": "m", "instance": "0", "engine": entry}
    rest = {"model_dir": where, "cache_dir": "/c", "weights_dir": None, "device": "cpu", "concurrency": 1}
    engine.tell({**boot, **rest})
    assert engine.ready() == "serial"
    assert engine.attach().answer(1).json == 1


def test_the_context_describes_the_instance(start):
    engine = start(
        """
        def handle_request(request, context):
            paths = [str(context.cache_dir), str(context.weights_dir)]
            return [context.model, context.instance, context.device, *paths]
        """,
        cache_dir="/c",
        weights_dir="/w",
        device="cuda",
    )
    assert engine.ready() == "serial"
    assert engine.attach().answer(1).json == ["cowsay", "0123456789ab", "cuda", "/c", "/w"]


@pytest.mark.parametrize("define, concurrency", [("def", 1), ("def", 3), ("async def", 1)])
def test_stop_runs_teardown(start, define, concurrency):
    engine = start(
        f"""
        {define} setup(context): print("setup", flush=True)
        {define} healthcheck(context): print("healthy")
        {define} teardown(context): print("teardown", context.instance)
        {define} handle_request(request, context): return 1
        print("imported", end="")
        """,
        concurrency,
    )
    engine.ready()
    link = engine.attach()
    assert link.answer(1).json == 1
    link.close()
    engine.tell({"type": "stop"})
    assert engine.wait() == 0
    assert engine.printed() == "importedsetup\nhealthy\nteardown 0123456789ab\n"
    assert engine.log() == ""


@pytest.mark.parametrize("define, concurrency", [("def", 1), ("def", 3), ("async def", 1)])
def test_the_engine_ends_when_its_worker_is_gone(start, define, concurrency):
    """Before, between and during connections: there is nothing left to serve."""
    for attached in (False, True):
        engine = start(f"{define} handle_request(request, context): return 1", concurrency)
        engine.ready()
        if attached:
            link = engine.attach()
            link.answer(1)
        engine.control.close()
        assert engine.wait() == 1
    engine = start("", boot=False)
    engine.control.close()
    assert engine.wait() == 1


@pytest.mark.parametrize("define, concurrency", [("def", 1), ("def", 3), ("async def", 3)])
@pytest.mark.parametrize("way", ["os.fork", "fork", "spawn", "forkserver"])
def test_processes_of_the_model_do_not_answer(start, define, concurrency, way):
    engine = start(
        f"""
        import multiprocessing, os
        def double(x):
            return 2 * x
        {define} handle_request(request, context):
            way = request.body.text
            if way == "os.fork":
                child = os.fork()
                if child == 0:
                    return "from the child"
                return os.waitpid(child, 0)[1]
            with multiprocessing.get_context(way).Pool(2) as pool:
                return pool.map(double, [1, 2, 3])
        """,
        concurrency,
    )
    engine.ready()
    link = engine.attach()
    for number in range(3):
        got = link.answer(number, way.encode())
        assert got.kind == RESPONSE, (got, engine.log())
        assert got.json == (0 if way == "os.fork" else [2, 4, 6])
    assert link.quiet(0.05)


def test_children_inherit_only_the_standard_descriptors(start):
    engine = start(
        """
        import subprocess, sys
        LIST = "import os; print(sorted(os.listdir('/proc/self/fd')))"
        def handle_request(request, context):
            return subprocess.check_output([sys.executable, "-c", LIST], close_fds=False, text=True)
        """
    )
    engine.ready()
    assert engine.attach().answer(1).json == "['0', '1', '2', '3']\n"  # 3 is the listing's own


@pytest.mark.parametrize("define, concurrency", [("def", 1), ("def", 3), ("async def", 3)])
def test_a_handler_that_closes_all_descriptors_ends_the_engine(start, define, concurrency):
    engine = start(
        f"""
        import os
        {define} handle_request(request, context):
            os.closerange(3, 1024)
            return 1
        """,
        concurrency,
    )
    engine.ready()
    link = engine.attach()
    link.ask(1)
    assert engine.wait() == 1
    link.close()
    assert "the engine cannot go on" in engine.log()


def test_a_handler_that_closes_the_standard_streams(start):
    engine = start(
        """
        import os, sys
        def handle_request(request, context):
            if request.body.bytes:
                os.close(0); os.close(1); os.close(2)
                sys.stderr = None
            print("into the void")
            raise ValueError
        """
    )
    engine.ready()
    link = engine.attach()
    assert link.answer(1, b"x").flags == RAISED
    assert link.answer(2).kind == ERROR
    link.close()
    again = engine.attach()  # its descriptors must not become 0, 1 or 2
    assert again.answer(3).kind == ERROR
    open_now = os.listdir(f"/proc/{engine.process.pid}/fd")
    assert not {"0", "1", "2"} & set(open_now), open_now


@pytest.mark.parametrize("define, concurrency", [("def", 1), ("async def", 3)])
def test_an_idle_engine_uses_no_processor_time(start, define, concurrency):
    engine = start(f"{define} handle_request(request, context): return 1", concurrency)
    engine.ready()
    link = engine.attach()
    link.answer(1)

    def used() -> tuple[int, int]:
        with open(f"/proc/{engine.process.pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        with open(f"/proc/{engine.process.pid}/status") as status:
            waits = next(line for line in status if line.startswith("voluntary"))
        return int(fields[11]) + int(fields[12]), int(waits.split()[1])

    before = used()
    assert link.quiet(0.3)
    after = used()
    assert (after[0] - before[0], after[1] - before[1] <= 1) == (0, True)


def test_background_tasks_run_without_a_connection(start):
    engine = start(
        """
        import asyncio
        async def tick():
            while True:
                await asyncio.sleep(0.001)
                print("tick", flush=True)
        async def setup(context):
            global task
            task = asyncio.create_task(tick())
        async def handle_request(request, context): return 1
        """
    )
    engine.ready()
    engine.await_true(lambda: engine.printed().count("tick") > 3, "ticks")


def test_only_needed_modules_are_imported(start):
    engine = start(
        """
        import sys
        def handle_request(request, context):
            return sorted({"asyncio", "logging", "inspect", "typing", "traceback", "dataclasses"} & set(sys.modules))
        """
    )
    engine.ready()
    assert engine.attach().answer(1).json == []


def test_a_handler_may_decorate_and_wrap(start):
    engine = start(
        """
        import functools
        def timed(function):
            @functools.wraps(function)
            def wrapper(*args):
                return function(*args)
            return wrapper
        class Model:
            @timed
            async def __call__(self, request, context):
                return "called"
        handle_request = functools.partial(Model())
        """
    )
    assert engine.ready() == "concurrent"
    assert engine.attach().answer(1).json == "called"


def test_a_plain_def_that_returns_a_coroutine_says_what_to_do(start):
    engine = start(
        """
        async def work(): return 1
        def handle_request(request, context): return work()
        """
    )
    assert engine.ready() == "serial"
    got = engine.attach().answer(1)
    assert got.kind == ERROR
    engine.await_log("async def")


def test_concurrent_requests_run_at_the_same_time(start):
    for define, meet in (("def", "barrier.wait(20)"), ("async def", "await meet()")):
        engine = start(
            f"""
            import asyncio, threading
            barrier = threading.Barrier(4)
            arrived = []
            async def meet():
                arrived.append(1)
                while len(arrived) % 4:
                    await asyncio.sleep(0.001)
            {define} handle_request(request, context):
                {meet}
                return request.id
            """,
            4,
        )
        engine.ready()
        link = engine.attach()
        for number in range(4):
            link.ask(number)
        due = time.monotonic() + LIMIT
        assert sorted(link.read().json for _ in range(4)) == ["r0", "r1", "r2", "r3"]
        assert time.monotonic() < due
