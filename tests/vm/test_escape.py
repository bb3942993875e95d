"""The escape suite (`tests/escape`) with cgroup v2, in the guest whose Python is the models' default. `make vm-test`.

The suite is the program that `make test` has built. It looks for the package's programs beside itself, and for its
files where they were when it was built.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT
from vm import Guest

TESTS = [
    "every_probe_is_refused_in_a_sandbox_and_succeeds_without_one",
    "links::links_that_a_model_leaves_lead_nowhere",
    "logs::what_a_model_writes_is_its_own_line_and_moves_nobodys_terminal",
    "packages::archives_of_packages_are_unpacked_nowhere_else",
    "packages::requirements_reach_no_file_of_the_host_and_no_other_model",
    "wires::descriptors_that_a_model_sends_are_kept_by_nobody",
]


@pytest.fixture(scope="session")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The suite's program, as it was built last."""
    built = [path for path in (ROOT / "target/debug/deps").glob("escape-*") if os.access(path, os.X_OK)]
    assert built, "the escape suite is not built: make vm-test builds it"
    small = tmp_path_factory.mktemp("suite") / "escape"
    subprocess.run(["strip", "-o", small, max(built, key=lambda path: path.stat().st_mtime)], check=True)
    listed = subprocess.run([small, "--list", "--format=terse"], check=True, capture_output=True, text=True).stdout
    assert sorted(line.removesuffix(": test") for line in listed.splitlines()) == TESTS, "all of it is tried"
    return small


@pytest.mark.parametrize("name", TESTS)
def test_no_way_out(guest: Guest, programs: dict[str, Path], suite: Path, name: str) -> None:
    if guest.release != "bookworm":
        pytest.skip("the models of the suite are written for Python 3.11")
    files = {path.relative_to(ROOT): path for path in (ROOT / "tests/escape").rglob("*.py")}
    script = f"""
        set -e
        mkdir -p "{ROOT}/tests"
        cp -r tests/escape "{ROOT}/tests"
        mkdir bin/deps
        mv escape bin/deps
        exec bin/deps/escape --exact "{name}" --nocapture
    """
    job = {**programs, **{str(name): path for name, path in files.items()}, "escape": suite, "run": script}
    outcome = guest.run(job)
    assert outcome.status == 0, outcome.output
