"""What reaches the model's log, whatever the model does with its streams and with `logging`, and whose line it is."""

from __future__ import annotations

import os

import pytest

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
    os.kill(engine.process.pid, 16)
    engine.await_log("in hold_the_interpreter")
    engine.await_log("in another_thread")
    assert link.read().json == 1, "the request goes on"


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
