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
    "every_probe_succeeds_without_a_sandbox",
    "links::links_left_by_a_model_are_not_followed",
    "logs::output_of_a_model_forges_no_log_line_and_controls_no_terminal",
    "packages::an_authors_further_index_gives_nothing_to_other_models",
    "packages::an_authors_index_gives_nothing_to_other_models",
    "packages::archives_of_packages_cannot_write_outside_their_environment",
    "packages::data_files_of_packages_stay_inside_their_environment",
    "packages::requirements_include_no_file_of_the_host",
    "packages::requirements_install_no_folder_of_the_host",
    "packages::special_members_of_archives_cannot_lead_outside",
    "packages::the_same_archives_escape_a_naive_unpacker",
    "taken_over::a_taken_over_scheduler_changes_no_file_of_root",
    "taken_over::messages_of_a_taken_over_scheduler_reach_no_file_of_root",
    "taken_over::the_attack_succeeds_where_root_works_by_path",
    "wires::descriptors_sent_by_a_model_are_closed",
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
