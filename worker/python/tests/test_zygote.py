"""A zygote: what it imports, whom it refuses to be, and what its copies do not share."""

from __future__ import annotations

import os
import shutil
import subprocess

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


def test_a_fork_has_the_imported_modules_and_its_own_session(zygote):
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
def test_a_process_that_cannot_be_forked_reports_it_and_ends(zygote, code, why):
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


def test_the_monitor_of_a_progress_bar_does_no_harm(zygote):
    """A daemon thread that looks at something from time to time, as tqdm's."""
    code = """
        import os, threading
        lock, ticks = threading.RLock(), []
        def watch():
            while not threading.Event().wait(0.001):
                with lock:
                    ticks.append(os.getpid())
        monitor = threading.Thread(target=watch, name="monitor", daemon=True)
        monitor.start()
        def handle_request(request, context):
            with lock:
                return [threading.active_count(), monitor.is_alive(), os.getpid() in ticks]
        """
    engine = zygote(code, "model")
    assert engine.preloaded == {"type": "preloaded"}
    for number in range(20):  # forks at any moment of the monitor's
        if number:
            os.killpg(engine.instance, 9)
            engine.control, engine.instance = engine.fork()
            engine.tell(engine.boot)
        engine.ready()
        assert engine.attach().answer(1).json == [2, False, False], "the engine's own thread, and no other"
    engine.await_log("INFO [-] threads of `[python] preload` that instances do without: `monitor` running model.watch")


def test_a_thread_that_is_waited_for_is_named(zygote):
    code = """
        from concurrent.futures import ThreadPoolExecutor
        pool = ThreadPoolExecutor(1, "mine")
        pool.submit(int).result()
        """
    engine = zygote(code, "colorsys", "model", boot=False)
    assert engine.preloaded["type"] == "unusable"
    told = "`mine_0` running concurrent.futures.thread._worker started by `import model`"
    assert engine.preloaded["message"].endswith(f"threads, which a fork does not copy: {told}")


def test_a_thread_of_c_is_named_by_its_library(zygote, tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler here")
    source = tmp_path / "pool.c"
    source.write_text(
        "#include <pthread.h>\n#include <unistd.h>\n"
        "static void *work(void *none) { for (;;) pause(); }\n"
        "void begin(void) { pthread_t thread; pthread_create(&thread, 0, work, 0); }\n"
    )
    library = tmp_path / "libpool.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-pthread", "-O0", str(source), "-o", str(library)], check=True)
    code = f"import ctypes, time\nctypes.CDLL({str(library)!r}).begin()\ntime.sleep(0.1)\n"
    engine = zygote(code, "model", boot=False)
    assert engine.preloaded["type"] == "unusable"
    assert "running libpool.so started by `import model`" in engine.preloaded["message"]


def test_forks_draw_different_numbers(zygote):
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


def test_instances_outlive_their_zygote(zygote):
    engine = zygote(ECHO)
    engine.ready()
    link = engine.attach()
    engine.zygote.close()
    assert engine.wait() == 0
    assert link.answer(1, b"1").json == 1, "its copies go on"


def test_exit_handlers_of_modules_run_in_the_instances(zygote):
    code = """
        import atexit, os
        atexit.register(lambda: print("bye from", os.getpid(), flush=True))
        def handle_request(request, context):
            return None
        """
    engine = zygote(code, "model")
    engine.ready()
    engine.tell({"type": "stop"})
    engine.await_true(lambda: engine.printed() == f"bye from {engine.instance}\n", "parting word of the instance")
    engine.zygote.close()
    assert engine.wait() == 0
    assert engine.printed() == f"bye from {engine.instance}\n"  # the zygote has none
