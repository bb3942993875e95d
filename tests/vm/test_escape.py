"""The escape suite (`tests/security/escape`) with cgroup v2, in the guests. `make vm-test`.

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

# The only Python of each, which is not the default of models in all of them.
PYTHON = {"bookworm": "3.11", "trixie": "3.13"}
TESTS = [
    "every_probe_is_refused_in_a_build_step",
    "every_probe_is_refused_in_a_model",
    "every_probe_is_refused_in_a_model_with_the_hosts_network",
    "every_probe_is_refused_in_an_instance_of_a_zygote",
    "every_probe_succeeds_where_nothing_stands_in_its_way",
    "links::links_that_a_model_leaves_lead_nowhere",
    "logs::what_a_model_writes_is_its_own_line_and_moves_nobodys_terminal",
    "packages::an_authors_further_index_gives_nothing_to_other_models",
    "packages::an_authors_index_gives_nothing_to_other_models",
    "packages::archives_of_packages_are_unpacked_nowhere_else",
    "packages::archives_of_packages_lead_elsewhere_when_they_are_unpacked_as_they_stand",
    "packages::odd_members_of_archives_lead_nowhere_else",
    "packages::requirements_include_no_file_of_the_host",
    "packages::requirements_install_no_folder_of_the_host",
    "packages::what_packages_bring_beside_their_modules_is_put_nowhere_else",
    "taken_over::a_taken_over_scheduler_changes_no_file_of_root",
    "taken_over::the_attacker_wins_where_root_works_by_path_in_a_folder_of_its_users",
    "taken_over::what_a_taken_over_scheduler_says_reaches_no_file_of_root",
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


@pytest.fixture(scope="session")
def suited(guest: Guest, programs: dict[str, Path], suite: Path) -> Guest:
    """The guest with the suite and the programs in /opt, and the suite's files in their place."""
    files = {path.relative_to(ROOT): path for path in (ROOT / "tests/security/escape").rglob("*.py")}
    script = f"""
        set -e
        mkdir -p "{ROOT}/tests/security"
        cp -r tests/security/escape "{ROOT}/tests/security"
        mkdir bin/deps
        mv escape bin/deps
        cp -r bin /opt
    """
    job = {**programs, **{str(name): path for name, path in files.items()}, "escape": suite, "run": script}
    return guest.after("escape", job)


@pytest.mark.parametrize("name", TESTS)
def test_no_way_out(suited: Guest, name: str) -> None:
    python = f"OMNI_TEST_PYTHON={PYTHON[suited.release]}"
    outcome = suited.run({"run": f'{python} exec /opt/bin/deps/escape --exact "{name}" --nocapture\n'})
    assert outcome.status == 0, outcome.output
