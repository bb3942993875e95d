"""Engines for the tests, ended whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from peer import Engine, Forked, Link

# Ways of running a handler: its beginning, and the concurrency.
WAYS = {"serial": ("def", 1), "threads": ("def", 4), "tasks": ("async def", 4)}


@pytest.fixture
def origin(request: pytest.FixtureRequest) -> type[Engine]:
    """How engines begin: alone, unless the test says from a zygote."""
    return Forked if getattr(request, "param", None) == "forked" else Engine


@pytest.fixture
def start(tmp_path: Path, origin: type[Engine]) -> Iterator[Callable[..., Engine]]:
    """Starts an engine on a model's source text."""
    engines: list[Engine] = []

    def begin(code: str, concurrency: int = 1, **options: Any) -> Engine:
        directory = tmp_path / f"m{len(engines)}"
        directory.mkdir(exist_ok=True)
        engines.append(origin(directory, code, concurrency, **options))
        return engines[-1]

    yield begin
    for engine in engines:
        engine.close()


@pytest.fixture
def serve(start: Callable[..., Engine]) -> Callable[..., tuple[Engine, Link]]:
    """An engine that is ready, with a data connection."""

    def begin(code: str, concurrency: int = 1, **options: Any) -> tuple[Engine, Link]:
        engine = start(code, concurrency, **options)
        engine.ready()
        return engine, engine.attach()

    return begin


@pytest.fixture(params=list(WAYS))
def model(
    request: pytest.FixtureRequest, serve: Callable[..., tuple[Engine, Link]]
) -> Callable[..., tuple[Engine, Link]]:
    """Serves a handler of batches with this body, in each way; `SLEEP(s)` waits as that way does."""
    how, concurrency = WAYS[request.param]
    sleep = "await asyncio.sleep" if how == "async def" else "time.sleep"

    def begin(body: str, before: str = "", annotation: str = "") -> tuple[Engine, Link]:
        code = f"import asyncio, os, time\nfrom omni import *\nimport omni\n{before}\n"
        code += f"{how} handle_batch(requests{annotation}, context):\n" + "\n".join(
            f"    {line}" for line in body.replace("SLEEP", sleep).strip().splitlines()
        )
        return serve(code, concurrency)

    return begin
