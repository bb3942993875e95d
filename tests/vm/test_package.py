"""The Debian package and its service, in the guests. `make vm-test`, which builds the package first.

What a job finds out stands in `guest/service.py`.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from vm import Guest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The package, and the same files as a later version. Not compressed: unpacking is emulated, too."""
    (package,) = (ROOT / "target/debian").glob("omni_*.deb")
    folder = tmp_path_factory.mktemp("packages")
    root = folder / "root"
    subprocess.run(["dpkg-deb", "--raw-extract", package, root], check=True)

    def build(name: str) -> Path:
        command = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", root, folder / name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return folder / name

    first = build("omni.deb")
    control = root / "DEBIAN/control"
    control.write_text(re.sub("^Version: .*", r"\g<0>+next", control.read_text(), flags=re.MULTILINE))
    return {"omni.deb": first, "next.deb": build("next.deb")}


@pytest.mark.parametrize(
    "job",
    [
        "serves_at_once",
        "outlives_its_models",
        "survives_kills",
        "reloads",
        "restarts",
        "is_upgraded_under_load",
        "is_not_tried_again_when_misconfigured",
        "is_purged",
    ],
)
def test_the_service(guest: Guest, packages: dict[str, Path], job: str) -> None:
    scripts = {name: HERE / "guest" / name for name in ("client.py", "service.py")}
    outcome = guest.run({**packages, **scripts, "run": f"exec python3 -u service.py {job}\n"}, limit=120)
    assert outcome.status == 0, outcome.output
