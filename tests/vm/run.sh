#!/bin/bash
# The tests in guests, each Debian in a process of its own. Called by `make vm-test`
#
# Usage: tests/vm/run.sh [ARGUMENTS OF PYTEST]      without -k, which chooses the Debian
#
# What a guest's tests print stands in target/vm/RELEASE.log and is shown when all have ended. In CI, whose processors
# others want as well, what fails is tried once more, as nextest does there, and is listed as FLAKY: it is to be mended.
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p target/vm

try() { # release, arguments of pytest
    .omni/venv/bin/pytest -q -o "cache_dir=$PWD/target/vm/.$1-pytest" tests/vm -k "$1" --durations=0 --durations-min=1 "${@:2}"
}
tests() { # release, arguments of pytest
    try "$@" && return
    [ -n "${CI:-}" ] || return
    echo "FLAKY, if it passes now:"
    try "$@" --last-failed
}

# QEMU, which both need.
python3 tests/vm/image.py
declare -A runs
for release in bookworm trixie; do
    tests "$release" "$@" >"target/vm/$release.log" 2>&1 &
    runs[$release]=$!
done
status=0
for release in "${!runs[@]}"; do
    wait "${runs[$release]}" || status=1
    cat "target/vm/$release.log"
done
exit "$status"
