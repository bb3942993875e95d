"""A node that is started by hand under real systemd and cgroup v2, in guests with Debian 12 and 13. `make vm-test`.

The first run makes the guests (`image.py`), for which it needs root and a Debian mirror. What a job finds out stands in
`guest/by_hand.py`; what it needs is handed over here.
"""

from __future__ import annotations

import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from vm import Guest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SYSTEMD = {"bookworm": "252", "trixie": "257"}


def run(guest: Guest, job: str, files: Mapping[str, str | Path]) -> None:
    """Runs a function of `guest/by_hand.py`."""
    scripts = {name: HERE / "guest" / name for name in ("client.py", "by_hand.py")}
    outcome = guest.run({**files, **scripts, "run": f"exec python3 -u by_hand.py {job}\n"})
    assert outcome.status == 0, outcome.output


def test_a_guest_runs_its_named_release(guest: Guest) -> None:
    asks = "systemctl --version\nsystemctl is-system-running\nstat -f -c %T /sys/fs/cgroup\ndate +%s\n"
    before = int(time.time())
    outcome = guest.run({"run": asks})
    assert outcome.status == 0
    version, _features, state, hierarchy, now = outcome.output.splitlines()
    assert version.split()[1] == SYSTEMD[guest.release]
    assert (state, hierarchy) == ("running", "cgroup2fs")
    assert before <= int(now) <= time.time()


def test_a_failed_job_is_reported(guest: Guest) -> None:
    outcome = guest.run({"run": ". ./more\n", "more": "echo this; echo that >&2; exit 3\n"})
    assert (outcome.status, outcome.output.split()) == (3, ["this", "that"])


def test_a_job_that_does_not_end_is_ended(guest: Guest) -> None:
    with pytest.raises(RuntimeError, match=r"did not end within 15 s(.|\n)*begun"):
        guest.run({"run": "echo begun; exec sleep infinity\n"}, limit=15)


@pytest.mark.parametrize(
    "job",
    [
        "sees_its_limit",
        "comes_back_after_oom",
        "survives_its_scheduler",
        "comes_back_without_its_worker",
        "serves_where_the_root_is_not_empty",
    ],
)
def test_a_node_by_hand(guest: Guest, programs: dict[str, Path], job: str) -> None:
    run(guest, job, programs)


def test_the_seed(guest: Guest, programs: dict[str, Path], tmp_path: Path) -> None:
    wheel = tmp_path / "cowsay-6.1-py3-none-any.whl"
    pack_wheel(ROOT / ".omni/models/cowsay", "cowsay-6.1", wheel)
    seed = {f"cowsay/{name}": ROOT / "models/cowsay" / name for name in ("model.py", "requirements.txt")}
    run(guest, "serves_the_seed", {**programs, **seed, wheel.name: wheel})


def pack_wheel(environment: Path, name: str, wheel: Path) -> None:
    """Makes an installed package a wheel again, for a guest that reaches no index."""
    (packages,) = environment.glob("lib/python*/site-packages")
    record = (packages / f"{name}.dist-info/RECORD").read_text().splitlines()
    installed = [path for line in record if not (path := line.split(",")[0]).startswith("../")]
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in installed:
            archive.write(packages / path, path)
