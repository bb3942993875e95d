"""The Debian package and its service, in the guests. `make vm-test`, which builds the package first.

What a job finds out stands in `guest/service.py`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from vm import Guest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def packages(package: Path, unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The package, and the same files as a later version. Not compressed: unpacking is emulated, too."""
    folder = tmp_path_factory.mktemp("packages")
    # The same package is the same bytes each time: what a guest was made of is not to change.
    clock = {**os.environ, "SOURCE_DATE_EPOCH": str(int(package.stat().st_mtime))}

    def build(root: Path, name: str) -> Path:
        command = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", root, folder / name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=clock)
        return folder / name

    later = folder / "later"
    shutil.copytree(unpacked, later, symlinks=True, copy_function=os.link)
    control = later / "DEBIAN/control"
    text = re.sub("^Version: .*", r"\g<0>+next", control.read_text(), flags=re.MULTILINE)
    control.unlink()
    control.write_text(text)
    return {"omni.deb": build(unpacked, "omni.deb"), "next.deb": build(later, "next.deb")}


@pytest.fixture(scope="session")
def served(guest: Guest, packages: dict[str, Path]) -> Guest:
    """The guest in which the package is installed and has answered for a model."""
    return guest.after("omni", {"omni.deb": packages["omni.deb"], **job("is_installed")})


def job(name: str, script: str = "service.py") -> dict[str, str | Path]:
    """A function of `guest/service.py`, or of another script."""
    scripts = {name: HERE / "guest" / name for name in ("client.py", "service.py", script)}
    return {**scripts, "run": f"exec python3 -u {script} {name}\n"}


@pytest.mark.parametrize(
    "name",
    [
        "serves",
        "is_in_the_journal",
        "leaves_processors_to_others",
        "slows_down_who_writes_without_end",
        "is_looked_at_by_the_doctor",
        "outlives_its_models",
        "survives_kills",
        "reloads",
        "restarts",
        "is_not_tried_again_when_misconfigured",
        "serves_a_single_model",
        "refuses_a_broken_single_model",
        "stops",
        "is_purged",
    ],
)
def test_the_service(served: Guest, name: str) -> None:
    outcome = served.run(job(name))
    assert outcome.status == 0, outcome.output


@pytest.mark.parametrize(
    "name",
    [
        "keep_their_limits",
        "outlive_both_services",
        "tell_want_of_memory",
        "come_from_zygotes",
        *(f"are_not_left_by_killed_starts {first}" for first in (0, 3, 6, 9)),
        "wait_for_a_bus_that_stands_still",
        "fail_at_once_without_a_bus",
        "change_their_driver",
        "are_refused_without_a_bus",
    ],
)
def test_scopes(served: Guest, name: str) -> None:
    outcome = served.run(job(name, "scopes.py"))
    assert outcome.status == 0, outcome.output


@pytest.mark.parametrize("name", ["is_upgraded_under_load", "is_not_upgraded_into_a_wrong_configuration"])
def test_an_upgrade(served: Guest, packages: dict[str, Path], name: str) -> None:
    outcome = served.run({"next.deb": packages["next.deb"], **job(name)})
    assert outcome.status == 0, outcome.output
