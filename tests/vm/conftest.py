"""Shared parts of all tests in guests: the guests, and the package whose programs they run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import image
import pytest
from vm import Guest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="session", params=image.RELEASES)
def guest(request: pytest.FixtureRequest) -> Guest:
    """Each guest, made when it is not there."""
    return Guest(request.param)


@pytest.fixture(scope="session")
def package() -> Path:
    """The Debian package that was built last."""
    (package,) = (ROOT / "target/debian").glob("omni_*.deb")
    return package


@pytest.fixture(scope="session")
def unpacked(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of the package, with its control files in the folder DEBIAN."""
    folder = tmp_path_factory.mktemp("unpacked")
    subprocess.run(["dpkg-deb", "--raw-extract", package, folder], check=True)
    return folder


@pytest.fixture(scope="session")
def programs(unpacked: Path) -> dict[str, Path]:
    """All of its programs, in the guest's /job/bin."""
    folders = [unpacked / "usr/lib/omni", unpacked / "usr/bin"]
    return {f"bin/{path.name}": path for folder in folders for path in folder.iterdir()}
