#!/bin/bash
# Runs fuzz targets one after the other, from what is kept and what earlier runs here have found.
#
# Usage: fuzz/run.sh [SECONDS [TARGET...]]    60 seconds each, all targets
#
# Inputs that reach new code go to fuzz/corpus/, which git ignores (keep.sh selects from there); inputs that break a
# property go to fuzz/artifacts/, and end the run with the command that repeats it.
set -euo pipefail
cd "$(dirname "$0")"
seconds=${1:-60}
targets=("${@:2}")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(basename -s .rs fuzz_targets/*.rs)

programs=$(./build.sh)
for target in "${targets[@]}"; do
    mkdir -p "corpus/$target" "artifacts/$target" "kept/$target" "cases/$target"
    log=artifacts/$target.log
    # No input should take seconds: one that does is a flaw as well.
    if "$programs/$target" -max_total_time="$seconds" -timeout=10 -max_len=16384 -artifact_prefix="artifacts/$target/" \
        "corpus/$target" "kept/$target" "cases/$target" >"$log" 2>&1; then
        echo "fuzz: $target: $(sed -n 's/^Done \([0-9]* runs\).*/\1/p' "$log")"
    else
        tail -n 40 "$log" >&2
        input=$(ls -t "artifacts/$target" | head -n 1)
        echo "fuzz: $target is broken. Again: $programs/$target fuzz/artifacts/$target/$input" >&2
        echo "Mend it, and keep the input: mv fuzz/artifacts/$target/$input fuzz/cases/$target/WHAT-IT-IS" >&2
        exit 1
    fi
    rmdir --ignore-fail-on-non-empty "kept/$target" "cases/$target"
done
