"""`pip install ./worker/python`: the whole package, and nothing left behind."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent


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
    told = subprocess.run(
        [python, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert told[1].startswith(str(checkout)) == editable
    shown = "from importlib.metadata import version; print(version('omni'))"
    assert (
        subprocess.run([python, "-I", "-c", shown], capture_output=True, text=True, timeout=60).stdout.split()
        == told[:1]
    )


def test_the_wheel_has_every_module(tmp_path):
    sys.path.insert(0, str(SOURCE))
    try:
        import backend
    finally:
        sys.path.remove(str(SOURCE))
    import zipfile

    name = backend.build_wheel(str(tmp_path))
    with zipfile.ZipFile(tmp_path / name) as wheel:
        held = {path for path in wheel.namelist() if ".dist-info/" not in path}
        listed = wheel.read(next(path for path in wheel.namelist() if path.endswith("/entry_points.txt")))
    assert listed == b"[pytest11]\nomni = omni._pytest\n" and "omni/_pytest.py" in held
    source = {f"omni/{path}" for path in files(SOURCE / "omni")}
    assert held == source and "omni/_run/server.py" in held and "omni/py.typed" in held
