#!/bin/bash
# The tests in guests, each Debian in a process of its own: tests/vm/run.sh [PYTEST ARGUMENTS]      called by `make vm-test`
#
# What a guest's tests print stands in target/vm/RELEASE.log and is shown when all have ended.
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p target/vm

# QEMU, which both need.
python3 tests/vm/image.py
declare -A runs
for release in bookworm trixie; do
    .omni/venv/bin/pytest -q -p no:cacheprovider tests/vm -k "$release" --durations=0 --durations-min=1 "$@" \
        > "target/vm/$release.log" 2>&1 &
    runs[$release]=$!
done
status=0
for release in "${!runs[@]}"; do
    wait "${runs[$release]}" || status=1
    cat "target/vm/$release.log"
done
exit "$status"
