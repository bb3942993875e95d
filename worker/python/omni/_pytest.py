"""The fixture `model_client` for pytest, which finds it by itself where the package is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from omni.testing import TestClient

_MARKS = ("omni.toml", "model.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the setting `model_directory`."""
    parser.addini("model_directory", "directory of the model that the fixture model_client calls", default="")


@pytest.fixture(scope="module")
def model_client(request: pytest.FixtureRequest) -> Iterator[TestClient]:
    """A client of the model in this process: of the directory that the setting `model_directory` names, or of the
    nearest one above the test that has a `model.py` or an `omni.toml`."""
    from omni.testing import TestClient

    with TestClient(_directory(request)) as client:
        yield client


def _directory(request: pytest.FixtureRequest) -> Path:
    root = Path(request.config.rootpath)
    setting = request.config.getini("model_directory")
    if setting:
        return root / str(setting)
    test = Path(str(request.path))
    for directory in test.parents:
        if any((directory / mark).is_file() for mark in _MARKS):
            return directory
        if directory == root:
            break
    raise pytest.UsageError(
        f"no model.py and no omni.toml above {test}: set `model_directory` in the settings of pytest"
    )
