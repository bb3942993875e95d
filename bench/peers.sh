#!/bin/bash
# Our node beside its peers: the same handlers, the same load, interleaved rounds, medians and ratios to the floor (bare
# hyper in front of a plain Python loop).
#
# Usage (root): PEERS=FOLDER bench/peers.sh [options of bench.py]      default: --targets floor,mosec,ours --rounds 3
#               PEERS=FOLDER bench/peers.sh --bursts N                  only the first chunks of streams (bursts.py)
#
# PEERS is the folder of the peers benchmark (bench.py, targets.json, floor/). Needs the Debian package wrk and the
# programs of `make build`. Everything it makes is below target/peers, results in target/peers/results-DATE.jsonl.
# MOSEC_PY and its like name the peers' interpreters; mosec is installed here when MOSEC_PY is not set.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "bench/peers.sh: $1" >&2; exit 1; }
[ -n "${PEERS:-}" ] || fail "PEERS is not set: it names the folder of the peers benchmark"
[ -r "$PEERS/bench.py" ] || fail "no bench.py in $PEERS"
command -v "${WRK:-wrk}" >/dev/null || fail "wrk is missing: apt-get install wrk"

OMNI_BIN=$(realpath "${OMNI_BIN:-target/release}")
for program in omni-scheduler omni-launcher omni-worker uv; do
    [ -x "$OMNI_BIN/$program" ] || fail "no $program in $OMNI_BIN: make build"
done

work=$PWD/target/peers
mkdir -p "$work"

# The floor is built from a copy: the folder of the peers may be read-only, and cargo writes its lock file.
cp -r --no-preserve=mode "$PEERS/floor" "$work/"
cargo build --quiet --release --manifest-path "$work/floor/Cargo.toml" --target-dir "$work/floor-target"

if [ -z "${MOSEC_PY:-}" ]; then
    MOSEC_PY=$work/mosec/bin/python
    if [ ! -x "$MOSEC_PY" ]; then
        "$OMNI_BIN/uv" venv --quiet --python python3.11 "$work/mosec"
        "$OMNI_BIN/uv" pip install --quiet --python "$MOSEC_PY" mosec
    fi
fi

# Folders of the node and of its peers, gone with this run. The scheduler, which gives root up, must reach its own.
OMNI_TMP=$(mktemp -d "${OMNI_TMP:-/tmp}/omni-peers.XXXXXX")
chmod 755 "$OMNI_TMP"
mkdir "$OMNI_TMP/tmp"
trap 'rm -rf --one-file-system "$OMNI_TMP"' EXIT

# The driver's streams are for the host `x`, and a node on loopback answers to the names that it was given.
printf '[server]\nhosts = ["x"]\n' > "$OMNI_TMP/node.toml"
mkdir "$OMNI_TMP/bin"
printf '#!/bin/sh\nexec "%s" --config "%s" "$@"\n' "$OMNI_BIN/omni-scheduler" "$OMNI_TMP/node.toml" \
    > "$OMNI_TMP/bin/omni-scheduler"
chmod 755 "$OMNI_TMP/bin" "$OMNI_TMP/bin/omni-scheduler"
OMNI_BIN=$OMNI_TMP/bin

export OMNI_BIN OMNI_TMP TMPDIR=$OMNI_TMP/tmp MOSEC_PY FLOOR_BIN=$work/floor-target/release/floor PYTHONDONTWRITEBYTECODE=1
results=$work/results-$(date -u +%Y%m%dT%H%M%SZ).jsonl
[ $# -gt 0 ] || set -- --targets floor,mosec,ours --rounds 3
echo "commit $(git rev-parse --short HEAD), $(nproc) CPUs, load $(cut -d' ' -f1 /proc/loadavg), results in $results" >&2
if [ "$1" != --bursts ]; then
    python3 "$PEERS/bench.py" --out "$results" "$@"
    set --
fi
bench/bursts.py "$@"
