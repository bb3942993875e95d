"""A zygote: what it imports, whom it refuses to be, and what its copies do not share."""

from __future__ import annotations

import os

import pytest
from peer import RESPONSE, Forked

ECHO = "def handle_request(request, context):\n    return request.body.json\n"


@pytest.fixture
def zygote(tmp_path):
    made = []

    def begin(code, *modules, **options):
        kind = type("Preloading", (Forked,), {"preload": modules})
        directory = tmp_path / f"m{len(made)}"
        directory.mkdir()
        made.append(kind(directory, code, **options))
        return made[-1]

    yield begin
    for engine in made:
        engine.close()


def test_a_copy_has_what_was_imported_and_its_own_session(zygote):
    code = """
        import os, sys
        had = "colorsys" in sys.modules
        def handle_request(request, context):
            return [had, os.getpid(), os.getsid(0), sys.path.count(os.getcwd()), context.instance]
        """
    engine = zygote(code, "colorsys")
    assert engine.ready() == "serial"
    got = engine.attach().answer(1).json
    assert got == [True, engine.instance, engine.instance, 1, "0123456789ab"]
    assert engine.process.pid != engine.instance


def test_a_module_of_the_model_may_be_preloaded(zygote):
    code = """
        import os
        loaded_by = os.getpid()
        def handle_request(request, context):
            return loaded_by
        """
    engine = zygote(code, "model")
    engine.ready()
    assert engine.attach().answer(1).json == engine.process.pid


@pytest.mark.parametrize(
    "code, why",
    [
        ("raise ValueError('no')", "ValueError: no"),
        ("raise SystemExit(0)", "SystemExit"),
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            "have started threads",
        ),
        ("import nothing_of_the_sort", "No module named 'nothing_of_the_sort'"),
    ],
    ids=["raises", "exits", "threads", "missing"],
)
def test_what_cannot_be_forked_says_so_and_ends(zygote, code, why):
    engine = zygote(code, "model", boot=False)
    assert engine.preloaded["type"] == "unusable"
    assert why in engine.preloaded["message"]
    assert engine.wait() == 78


def test_its_own_threads_do_no_harm_when_they_end_before_a_fork(zygote):
    """As OpenBLAS does it."""
    code = """
        import os, threading
        if "omni._engine.zygote" in __import__("sys").modules:
            end = threading.Event()
            thread = threading.Thread(target=end.wait)
            thread.start()
            os.register_at_fork(before=lambda: (end.set(), thread.join()))
        def handle_request(request, context):
            return threading.active_count()
        """
    engine = zygote(code, "model")
    assert engine.preloaded == {"type": "preloaded"}
    engine.ready()
    assert engine.attach().answer(1).kind == RESPONSE


def test_copies_draw_different_numbers(zygote):
    engine = zygote(ECHO, "random")
    code = engine.directory / "model.py"
    code.write_text("import random\ndrawn = random.random()\ndef handle_request(request, context):\n    return drawn\n")
    drawn = set()
    for _ in range(3):
        engine.control, pid = engine.fork()
        try:
            engine.tell(engine.boot)
            engine.ready()
            drawn.add(engine.attach().answer(1).json)
        finally:
            os.killpg(pid, 9)
    assert len(drawn) == 3


def test_the_end_of_its_worker_is_its_own(zygote):
    engine = zygote(ECHO)
    engine.ready()
    link = engine.attach()
    engine.zygote.close()
    assert engine.wait() == 0
    assert link.answer(1, b"1").json == 1, "its copies go on"


def test_what_modules_do_at_exit_the_instances_do(zygote):
    code = """
        import atexit, os
        atexit.register(lambda: print("bye from", os.getpid(), flush=True))
        def handle_request(request, context):
            return None
        """
    engine = zygote(code, "model")
    engine.ready()
    engine.tell({"type": "stop"})
    while engine.control.recv(65536):
        pass  # the instance is gone when its end of the socket is
    engine.zygote.close()
    assert engine.wait() == 0
    assert engine.output.read_text() == f"bye from {engine.instance}\n"
