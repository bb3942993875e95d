"""Engines for the tests, ended whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from peer import Engine, Forked, Link


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
