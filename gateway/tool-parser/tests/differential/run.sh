#!/bin/bash
# Compares our parsers with those of others; builds all of them, in target/differential, where they are not built yet.
set -euo pipefail
cd "$(dirname "$0")"
export CARGO_TARGET_DIR=$PWD/../../../../target/differential
cargo fetch --quiet --locked
# Vocabulary of gpt-oss, from a crate that brings it.
TIKTOKEN_ENCODINGS_BASE=$(cargo metadata --locked --format-version 1 | python3 -c '
import json, pathlib, sys
crates = json.load(sys.stdin)["packages"]
print(*(pathlib.Path(crate["manifest_path"]).parent / "assets" for crate in crates if crate["name"] == "tiktoken-rs"))
')
export TIKTOKEN_ENCODINGS_BASE
cargo build --quiet --locked
exec "$CARGO_TARGET_DIR/debug/omni-tool-parser-differential" "$@"
