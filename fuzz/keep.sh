#!/bin/bash
# Makes the kept corpora anew: the fewest and shortest inputs that lead everywhere the old ones and the new finds lead
# (how often is not counted: that would keep ten times as many).
#
# Usage: fuzz/keep.sh [TARGET...]    after a long run; commit the result in fuzz/kept/
set -euo pipefail
cd "$(dirname "$0")"
targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(basename -s .rs fuzz_targets/*.rs)

programs=$(./build.sh)
for target in "${targets[@]}"; do
    mkdir -p "corpus/$target" "artifacts" "kept/$target"
    rm -rf "kept/$target.new"
    mkdir "kept/$target.new"
    "$programs/$target" -set_cover_merge=1 -use_counters=0 -max_len=4096 "kept/$target.new" "kept/$target" "corpus/$target" \
        >"artifacts/$target.log" 2>&1 || { tail -n 40 "artifacts/$target.log" >&2; exit 1; }
    rm -rf "kept/$target"
    mv "kept/$target.new" "kept/$target"
    echo "kept: $target: $(find "kept/$target" -type f | wc -l) inputs, $(du -b -s "kept/$target" | cut -f 1) bytes"
done
