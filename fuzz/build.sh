#!/bin/bash
# Builds the fuzz targets and says where they are. Called by run.sh and keep.sh.
#
# libFuzzer needs only a stable part of the compiler: a pass that counts edges and reports comparisons. The target is
# named so that only fuzzed code is compiled with it, and no build script.
set -euo pipefail
cd "$(dirname "$0")"

host=$(rustc -vV | sed -n 's/^host: //p')
flags="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
for kind in inline-8bit-counters pc-table trace-compares; do
    flags+=" -Cllvm-args=-sanitizer-coverage-$kind"
done
# Comparisons stay apart, or several would count as one.
flags+=" -Cllvm-args=-simplifycfg-branch-fold-threshold=0"
RUSTFLAGS=$flags cargo build --quiet --release --locked --target "$host" >&2
echo "$PWD/target/$host/release"
