"""Builds the wheel of the package `omni`: the hooks that pip and other installers call (PEP 517, PEP 660).

A backend of its own, because the usual ones leave `build/` and `*.egg-info` in the checkout and have to be fetched
first. Nothing is written but the wheel.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
WHEEL = "Wheel-Version: 1.0\nGenerator: omni\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def build_wheel(wheel_directory: str, config_settings: object = None, metadata_directory: object = None) -> str:
    """Writes the wheel; returns its name."""
    package = HERE / "omni"
    found = [path for path in sorted(package.rglob("*")) if path.suffix == ".py" or path.name == "py.typed"]
    return _write(wheel_directory, {path.relative_to(HERE).as_posix(): path.read_bytes() for path in found})


def build_editable(wheel_directory: str, config_settings: object = None, metadata_directory: object = None) -> str:
    """A wheel that points at this checkout."""
    return _write(wheel_directory, {"_omni_checkout.pth": f"{HERE}\n".encode()})


def build_sdist(sdist_directory: str, config_settings: object = None) -> str:
    """There is none: the package is part of the checkout."""
    raise NotImplementedError("the package is built from a checkout, into a wheel")


def _write(directory: str, files: dict[str, bytes]) -> str:
    version = _only(r'VERSION = "(.+)"', HERE / "omni" / "_version.py")
    project = HERE / "pyproject.toml"
    summary = _only(r'description = "(.+)"', project)
    python = _only(r'requires-python = "(.+)"', project)
    about = [
        "Metadata-Version: 2.1",
        "Name: omni",
        f"Version: {version}",
        f"Summary: {summary}",
        f"Requires-Python: {python}",
        "License: Apache-2.0",
    ]
    info = f"omni-{version}.dist-info"
    files[f"{info}/METADATA"] = ("\n".join(about) + "\n").encode()
    files[f"{info}/WHEEL"] = WHEEL.encode()
    plugin = _only(r'omni = "(omni\..+)"', project)
    files[f"{info}/entry_points.txt"] = f"[pytest11]\nomni = {plugin}\n".encode()
    rows = [f"{name},sha256={_hash(data)},{len(data)}" for name, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    name = f"omni-{version}-py3-none-any.whl"
    with zipfile.ZipFile(Path(directory) / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in files.items():
            wheel.writestr(path, data)
    return name


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _only(pattern: str, path: Path) -> str:
    found = re.search(f"^{pattern}$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None, f"{path} has no line {pattern}"
    return found[1]
