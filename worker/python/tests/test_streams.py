"""When the pieces of a stream leave."""

from __future__ import annotations

import itertools

import pytest
from peer import CHUNK


@pytest.mark.parametrize("define", ["async def", "def"])
def test_a_stream_that_waits_for_nothing_lets_the_loop_turn(serve, define):
    """A chunk says how often the loop has turned. `async def` answers with an asynchronous generator or a plain one."""
    code = """
        import asyncio, time
        turns = 0
        def tick():
            global turns
            turns += 1
            asyncio.get_running_loop().call_soon(tick)
        DEF chunks(busy):
            for _ in range(400):
                until = time.monotonic() + busy
                while time.monotonic() < until:
                    pass
                yield str(turns)
        async def handle_request(request, context):
            if not turns:
                tick()
            return chunks(request.body.json)
    """
    _, link = serve(code.replace("DEF", define), 4)
    for number, busy in ((1, 0), (2, 0.0002)):
        link.ask(number, busy)
        said = [f.payload for f in link.read_until_last(number) if f.kind == CHUNK]
        rows = [len(list(row)) for _, row in itertools.groupby(said)]
        assert sum(rows) == 400
        assert rows[0] == 1  # it leaves by itself
        assert max(rows[1:]) == (1 if busy else 8)


@pytest.mark.parametrize("define", ["async def", "def"])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_chunk_leaves_before_the_next_one_is_computed(serve, define, concurrency, tmp_path):
    """The computation of each lasts until this test has the chunk before."""
    code = """
        import os
        def compute(step):
            while not os.path.exists(f"{FOLDER}/{step}"):
                pass
            return str(step)
        DEF handle_request(request, context):
            for step in range(5):
                yield compute(step)
    """
    _, link = serve(code.replace("DEF", define).replace("{FOLDER}", str(tmp_path)), concurrency)
    link.ask(1)
    for step in range(5):
        (tmp_path / str(step)).touch()
        got = link.read()
        while got.kind != CHUNK:
            got = link.read()
        assert got.payload == str(step).encode()
