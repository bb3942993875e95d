"""`pip install ./worker/python`, and the wheel: the whole package, with every Python, and nothing left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent
UV = SOURCE.parent.parent / ".omni" / "tools" / "bin" / "uv"
PYENV = Path.home() / ".pyenv" / "versions"
"""Interpreters of pyenv, which are not on the path under their own names."""
RELEASES = ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14"]


@pytest.fixture
def checkout(tmp_path):
    left_out = shutil.ignore_patterns("tests", "__pycache__", ".*")
    return shutil.copytree(SOURCE, tmp_path / "python", ignore=left_out)


def files(directory):
    found = (path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
    return {path for path in found if "__pycache__" not in path}


@pytest.mark.parametrize("editable", [False, True])
def test_an_installation_leaves_nothing_in_the_checkout(checkout, tmp_path, editable):
    pip = shutil.which("pip3")
    if pip is None:
        pytest.skip("there is no pip here")
    before = files(checkout)
    # A separate installation leaves this environment unchanged.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True, timeout=60)
    python = str(tmp_path / "venv" / "bin" / "python")
    options = [
        "--python",
        python,
        "install",
        "--no-index",
        "--no-deps",
        "--disable-pip-version-check",
        "--no-cache-dir",
    ]
    command = [pip, *options, *(["-e"] if editable else []), str(checkout)]
    subprocess.run(command, check=True, timeout=120)
    assert files(checkout) == before
    code = "import omni, omni._engine.main, omni._run.program; print(omni.__version__, omni.__file__)"
    version, file = told([python, "-I", "-c", code]).split()
    assert file.startswith(str(checkout)) == editable
    code = "from importlib.metadata import version; print(version('omni'))"
    assert told([python, "-I", "-c", code]) == version


def build_wheel(directory):
    """The wheel, as `make wheel` builds it."""
    code = f"import backend; print(backend.build_wheel({str(directory)!r}))"
    made = subprocess.run([sys.executable, "-B", "-c", code], cwd=SOURCE, capture_output=True, text=True, timeout=60)
    assert made.returncode == 0, made.stderr
    return directory / made.stdout.strip()


def told(command, **options):
    """The output of a command that succeeds."""
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
    assert ran.returncode == 0, (ran.stdout, ran.stderr)
    return ran.stdout.strip()


def install(python, directory):
    """A fresh environment with the wheel, and nothing from a network."""
    if not UV.exists():
        pytest.skip("there is no uv here: `make setup` fetches it")
    offline = {"cwd": directory, "env": {"PATH": "/usr/bin:/bin", "HOME": str(directory), "UV_OFFLINE": "1"}}
    told([str(UV), "venv", "--quiet", "--no-cache", "--python", python, "venv"], **offline)
    fresh = str(directory / "venv" / "bin" / "python")
    wheel = str(build_wheel(directory))
    told([str(UV), "pip", "install", "--quiet", "--no-cache", "--no-index", "--python", fresh, wheel], **offline)
    return fresh


@pytest.mark.parametrize("release", RELEASES)
def test_the_wheel_installs_with_every_release(tmp_path, release):
    if not UV.exists():
        pytest.skip("there is no uv here: `make setup` fetches it")
    find = [str(UV), "python", "find", "--offline", "--no-python-downloads", release]
    environment = {"PATH": os.pathsep.join([*map(str, PYENV.glob("*/bin")), os.environ["PATH"]])}
    ran = subprocess.run(find, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    found = ran.stdout.strip()
    is_own = release == ".".join(map(str, sys.version_info[:2]))
    if not found and not is_own:
        pytest.skip(f"there is no Python {release} here")
    python = install(sys.executable if is_own else found, tmp_path)
    code = (
        "import omni, omni.testing, omni._engine.main, omni._run.program; from omni import *; print(omni.__version__)"
    )
    version = told([python, "-I", "-c", code])
    assert told([python, "-I", "-m", "omni", "--version"]) == f"omni {version}"
    (tmp_path / "model.py").write_text("def handle_request(request, context): return request.body.json\n")
    code = "from omni.testing import TestClient; print(TestClient('.').run(json=[7]).json)"
    assert told([python, "-I", "-c", code], cwd=tmp_path) == "[7]"


def test_pytest_finds_the_fixture_of_an_installed_wheel(tmp_path):
    python = install(sys.executable, tmp_path)
    packages = next((tmp_path / "venv").glob("lib/*/site-packages"))
    (packages / "pytest-of-this-run.pth").write_text(f"{Path(pytest.__file__).parent.parent}\n")
    (tmp_path / "model.py").write_text("def handle_request(request, context): return 'moo'\n")
    (tmp_path / "test_moo.py").write_text("def test_moo(model_client): assert model_client.run().text == 'moo'\n")
    ran = told([python, "-I", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore"], cwd=tmp_path)
    assert "1 passed" in ran


def test_the_wheel_has_every_module(tmp_path):
    with zipfile.ZipFile(build_wheel(tmp_path)) as wheel:
        held = {path for path in wheel.namelist() if ".dist-info/" not in path}
        listed = wheel.read(next(path for path in wheel.namelist() if path.endswith("/entry_points.txt")))
    assert listed == b"[pytest11]\nomni = omni._pytest\n" and "omni/_pytest.py" in held
    source = {f"omni/{path}" for path in files(SOURCE / "omni")}
    assert held == source and "omni/_run/server.py" in held and "omni/py.typed" in held
