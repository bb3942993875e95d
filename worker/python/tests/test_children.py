"""Interpreters that a model starts, in a directory whose files are named like modules of Python's library."""

from __future__ import annotations

import pytest
from peer import Engine, Forked

NAMES = ["queue", "signal", "threading", "socket", "pickle", "selectors", "struct", "logging"]
MODEL = """
import multiprocessing, subprocess, sys
import queue
from concurrent.futures import ProcessPoolExecutor

def doubled(number):
    import queue as mine
    return [number * 2, mine.WORDS]

def handle_request(request, context):
    what = request.body.text
    if what == "tool":
        done = subprocess.run([sys.executable, "tools/tool.py"], capture_output=True, text=True)
        return [done.stdout, done.stderr]
    start = multiprocessing.get_context(what)
    with start.Pool(2) as pool:
        results = pool.map_async(doubled, [1, 2, 3]).get(15)
        sent = pool.apply_async(type, (queue.Kind(),)).get(15)
    with ProcessPoolExecutor(1, mp_context=start) as pool:
        results.append(pool.submit(doubled, 4).result(15))
    return [results, sent is queue.Kind, queue.WORDS]
"""


@pytest.mark.parametrize("origin", [Engine, Forked])
def test_multiprocessing_gets_the_library_and_the_model_its_own(tmp_path, origin):
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"WORDS = {name!r}\nclass Kind: pass\n")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "tool.py").write_text("import sibling\nprint(sibling.WORDS)\n")
    (tmp_path / "tools" / "sibling.py").write_text("WORDS = 'beside the tool'\n")
    engine = origin(tmp_path, MODEL)
    try:
        engine.ready()
        link = engine.attach()
        for number, method in enumerate(("spawn", "forkserver"), 1):
            got = link.answer(number, method.encode())
            assert got.code == 200, engine.log()
            assert got.json == [[[2, "queue"], [4, "queue"], [6, "queue"], [8, "queue"]], True, "queue"]
        assert link.answer(3, b"tool").json == ["beside the tool\n", ""]
        assert "Traceback" not in engine.log()
    finally:
        engine.close()
