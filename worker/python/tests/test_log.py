"""The model's log, whatever the model does with its streams and with `logging`, and the request each line belongs
to.
"""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

ASK, INSIST = 16, signal.SIGTSTP
"""The signals by which the worker has stacks written (`worker/instance/src/stacks.rs`)."""
MODES = [("def", 1), ("def", 3), ("async def", 3)]


@pytest.mark.parametrize("define, concurrency", MODES)
@pytest.mark.parametrize(
    "silence",
    [
        "sys.stderr = open(os.devnull, 'w')",
        "sys.stderr = io.StringIO()",
        "sys.stderr = None",
        "sys.stderr.close()",
        "os.dup2(os.open(os.devnull, os.O_WRONLY), 2)",
        "logging.config.dictConfig({'version': 1, 'root': {'level': 'INFO'}})",
        "logging.config.fileConfig(io.StringIO(INI))",
        "logging.getLogger('omni.test').handlers.clear(); logging.getLogger().handlers.clear()",
    ],
)
def test_nothing_silences_the_logger_and_tracebacks(start, define, concurrency, silence):
    engine = start(
        f"""
        import io, logging.config, os, sys
        INI = "[loggers]\\nkeys=root\\n[handlers]\\nkeys=\\n[formatters]\\nkeys=\\n[logger_root]\\nhandlers=\\n"
        def setup(context):
            context.logger.info("before")
            {silence}
        {define} handle_request(request, context):
            context.logger.warning("after")
            raise ValueError("boom")
        """,
        concurrency,
    )
    engine.ready()
    engine.attach().answer(1)
    engine.await_log("ERROR [r1] ValueError: boom")
    said = engine.log()
    assert "INFO [-] before\n" in said and "WARNING [r1] after\n" in said, said


@pytest.mark.parametrize("define, concurrency", MODES)
def test_lines_of_libraries_and_of_print_carry_the_request(start, define, concurrency):
    engine = start(
        f"""
        import logging, sys, warnings
        log = logging.getLogger("a.library")
        {define} handle_request(request, context):
            log.debug("not wanted")
            log.info("told by a library")
            log.warning("warned by a library")
            print("printed", "by the author")
            print("two\\nlines", file=sys.stderr)
            print("<3>broken", file=sys.stderr)
            print("<html>", file=sys.stderr)
            print("without an end", end="")
            return 1
        """,
        concurrency,
    )
    engine.ready()
    assert engine.attach().answer(7).json == 1
    engine.await_log("INFO [r7] a.library: told by a library\nWARNING [r7] a.library: warned by a library\n")
    engine.await_log("INFO [r7] two\nINFO [r7] lines\nERROR [r7] broken\nINFO [r7] <html>\n")
    assert "not wanted" not in engine.log()
    printed = "INFO [r7] printed by the author\nINFO [r7] without an end\n"
    engine.await_true(lambda: engine.output.read_text() == printed, "what was printed")


def test_the_models_own_configuration_of_logging_takes_libraries_lines(start):
    engine = start(
        """
        import logging
        logging.basicConfig(level=logging.DEBUG, format="own %(message)s")
        def handle_request(request, context):
            logging.getLogger("a.library").debug("a line")
            return 1
        """
    )
    engine.ready()
    engine.attach().answer(1)
    engine.await_log("INFO [r1] own a line\n")


def test_a_module_that_is_imported_late_or_is_not_the_standard_one(start):
    engine = start(
        """
        def handle_request(request, context):
            import logging
            logging.getLogger("late").info("a line")
            return logging.__spec__.name
        """
    )
    engine.ready()
    assert engine.attach().answer(1).json == "logging"
    engine.await_log("INFO [r1] late: a line\n")


def test_lines_of_requests_that_print_at_the_same_time_stay_whole(start):
    engine = start(
        """
        import threading
        both = threading.Barrier(2)
        def handle_request(request, context):
            for part in ("one ", "two ", "three"):
                both.wait()
                print(part, end="")
            print()
            return 1
        """,
        2,
    )
    engine.ready()
    link = engine.attach()
    for number in (1, 2):
        link.ask(number)
    for _ in range(2):
        link.read()
    whole = ["INFO [r1] one two three", "INFO [r2] one two three"]
    engine.await_true(lambda: sorted(engine.output.read_text().splitlines()) == whole, "two whole lines")


def test_a_progress_bar_is_written_as_it_moves(start):
    engine = start(
        """
        import sys, time
        def handle_request(request, context):
            for percent in (10, 20):
                sys.stderr.write(f"\\r{percent}%")
                sys.stderr.flush()
            while True:
                time.sleep(0.01)
        """
    )
    engine.ready()
    link = engine.attach()
    link.ask(1)
    engine.await_true(lambda: engine.errors.read_bytes() == b"\rINFO [r1] 10%\rINFO [r1] 20%", "the bar")
    link.cancel(1)
    link.read()
    engine.await_true(lambda: engine.errors.read_bytes().endswith(b"20%\n"), "the end of its line")


@pytest.mark.parametrize("define, concurrency", MODES)
def test_a_signal_has_every_threads_stack_written_though_one_holds_the_interpreter(start, define, concurrency):
    engine = start(
        f"""
        import ctypes, threading
        def another_thread():
            threading.Event().wait()
        def hold_the_interpreter():
            print("held", flush=True)
            ctypes.PyDLL(None).sleep(3)
        {define} handle_request(request, context):
            threading.Thread(target=another_thread, daemon=True).start()
            hold_the_interpreter()
            return 1
        """,
        concurrency,
    )
    engine.ready()
    link = engine.attach()
    link.ask(1)
    engine.await_true(lambda: "held" in engine.printed(), "the handler")
    os.kill(engine.process.pid, ASK)
    os.kill(engine.process.pid, INSIST)
    engine.await_log("in hold_the_interpreter")
    engine.await_log("in another_thread")
    assert link.read().json == 1, "the request goes on"


@pytest.mark.parametrize("origin", ["alone", "forked"], indirect=True)
@pytest.mark.parametrize("define, concurrency", MODES)
def test_a_signal_has_stacks_written_though_the_main_thread_is_in_c(start, define, concurrency):
    engine = start(
        f"""
        import ctypes, os
        def wait_in_c():
            print("waits", os.getpid(), flush=True)
            ctypes.CDLL(None).pause()
        {define} handle_request(request, context):
            wait_in_c()
        """,
        concurrency,
    )
    engine.ready()
    link = engine.attach()
    link.ask(1)
    engine.await_true(lambda: engine.printed().endswith("\n"), "the handler")
    os.kill(int(engine.printed().split()[1]), ASK)
    engine.await_log("in wait_in_c")
    assert "Thread 0x" in engine.log()
    assert "Current thread 0x" in engine.log()


@pytest.mark.parametrize("define, concurrency", MODES)
def test_many_stacks_are_written_while_threads_come_and_go(start, define, concurrency):
    engine = start(
        f"""
        import os, threading
        stop = False
        def descend(depth):
            return depth and descend(depth - 1)
        def start_threads():
            while not stop:
                threads = [threading.Thread(target=descend, args=(3,)) for _ in range(4)]
                for thread in threads: thread.start()
                for thread in threads: thread.join()
        def setup(context):
            for _ in range(4):
                threading.Thread(target=start_threads, daemon=True).start()
        {define} handle_request(request, context):
            return os.getpid()
        """,
        concurrency,
    )
    engine.ready()
    link = engine.attach()
    pid = link.answer(1).json
    for _ in range(1000):
        os.kill(pid, ASK)
        time.sleep(0.001)
        assert engine.process.poll() is None, engine.log()[-2000:]
    assert link.answer(2).json == pid, "the engine goes on"
    engine.await_true(lambda: engine.log().count("in start_threads") > 100, "many stacks")


@pytest.mark.parametrize("define, concurrency", MODES)
def test_an_engine_that_has_answered_does_not_answer_again(start, define, concurrency):
    engine = start(f"{define} handle_request(request, context):\n    return 1\n", concurrency)
    engine.ready()
    for answers in range(1, 10):
        os.kill(engine.process.pid, ASK)
        engine.await_true(lambda: engine.log().count("in <module>\n") >= answers, "answer")  # noqa: B023
        engine.await_true(lambda: waits_for_the_signal(engine.process.pid), "thread that waits")
        os.kill(engine.process.pid, INSIST)
        engine.await_true(lambda: waits_for_the_signal(engine.process.pid), "thread that waits again")
    assert engine.log().count("in <module>\n") == answers, engine.log()


def waits_for_the_signal(pid: int) -> bool:
    """True if no signal is left and a thread is in `sigwait`, where the kernel has the signal unblocked."""
    statuses = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    pending, blocked = (
        [int(re.findall(rf"{mask}:\t(\w+)", text)[0], 16) for text in statuses] for mask in ("ShdPnd", "SigBlk")
    )
    return not any(pending) and any(not mask >> ASK - 1 & 1 for mask in blocked)


def test_a_crash_has_every_threads_stack_written(start):
    engine = start(
        """
        import ctypes, sys
        def setup(context):
            sys.stderr.close()
        def read_nowhere():
            ctypes.string_at(0)
        def handle_request(request, context):
            read_nowhere()
        """
    )
    engine.ready()
    link = engine.attach()
    link.ask(1)
    assert engine.wait() == -11
    assert "Fatal Python error: Segmentation fault" in engine.log()
    assert "in read_nowhere" in engine.log()


@pytest.mark.parametrize("text", ["x" * 20_000, "ü" * 9_000, "\ud800" * 3_000])
def test_every_part_of_a_long_line_carries_the_request(start, text):
    """The worker cuts lines of more than 8 KiB."""
    engine = start(
        f"""
        import sys
        text = {text!r}
        def handle_request(request, context):
            print(text)
            print("a" * 5000, end="", flush=True)
            print(text, text, sep="\\n")
            context.logger.info(text)
            print("the end", file=sys.stderr)
            return 1
        """
    )
    engine.ready()
    assert engine.attach().answer(7).json == 1
    engine.await_log("the end")
    shown = text.encode("utf-8", "backslashreplace").decode()
    mark = "INFO [r7] "
    for written, wanted in ((engine.output, shown + "a" * 5000 + 2 * shown), (engine.errors, shown + "the end")):
        lines = written.read_text().splitlines()
        assert all(line.startswith(mark) and len(line.encode()) <= 8192 for line in lines)
        assert "".join(line[len(mark) :] for line in lines) == wanted


@pytest.mark.parametrize("define, concurrency", MODES)
def test_text_outside_utf8_is_printed_escaped(start, define, concurrency):
    engine = start(
        f"""
        import sys
        {define} handle_request(request, context):
            print("half \\ud800 pair, and \\udcff")
            if request.body.text == "strict":
                sys.stdout.reconfigure(errors="strict")
                print("\\ud800")
            return 1
        """,
        concurrency,
    )
    engine.ready()
    link = engine.attach()
    assert link.answer(1, b"x").json == 1
    engine.await_true(lambda: "[r1] half \\ud800 pair, and \\udcff\n" in engine.output.read_text(), "the line")
    assert link.answer(2, b"strict").code == 500
