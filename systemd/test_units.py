"""The units as systemd reads them: nothing unknown in them, and no less hardening than was reached once.

Run by `make test`. The units are put into a root of their own beside programs that do nothing, so that systemd finds
what they name.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parent
SYSTEM = Path("/usr/lib/systemd/system")
PROGRAMS = [
    "usr/lib/omni/omni-scheduler",
    "usr/lib/omni/omni-launcher",
    "usr/bin/omnictl",
    "usr/bin/systemctl",
    "usr/bin/kill",
]
# Levels of exposure of `systemd-analyze security`, in tenths: what was reached. The launcher makes sandboxes.
EXPOSURE = {"omni.service": 17, "omni-launcher.service": 78}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("root")
    for program in PROGRAMS:
        (root / program).parent.mkdir(parents=True, exist_ok=True)
        (root / program).write_text("#!/bin/sh\n")
        (root / program).chmod(0o755)
    units = root / "etc/systemd/system"
    units.mkdir(parents=True)
    for pattern in ("*.service", "*.socket", "*.slice"):
        for unit in UNITS.glob(pattern):
            shutil.copy(unit, units)
    targets = root / SYSTEM.relative_to("/")
    targets.mkdir(parents=True)
    for target in SYSTEM.glob("*.target"):
        shutil.copy(target, targets)
    return root


def analyze(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", "--no-pager", f"--root={root}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_systemd_understands_every_line(root: Path) -> None:
    units = [path.name for path in (root / "etc/systemd/system").iterdir()]
    assert len(units) == 6
    said = analyze(root, "verify", "--man=no", *units)
    assert (said.returncode, said.stdout + said.stderr) == (0, "")


def test_a_line_that_systemd_does_not_know_is_found(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "root"
    shutil.copytree(root, copy)
    unit = copy / "etc/systemd/system/omni.service"
    unit.write_text(unit.read_text().replace("RestrictNamespaces=", "RestrictNamespace="))
    said = analyze(copy, "verify", "--man=no", "omni.service")
    assert "RestrictNamespace" in said.stderr


@pytest.mark.parametrize("unit", EXPOSURE)
def test_hardening_is_kept(root: Path, unit: str) -> None:
    def within(threshold: int) -> bool:
        said = analyze(root, "security", "--offline=true", f"--threshold={threshold}", unit)
        assert "Overall exposure level" in said.stdout, said
        return said.returncode == 0

    assert within(EXPOSURE[unit])
    assert not within(EXPOSURE[unit] - 1), "it has become better: lower the figure"
