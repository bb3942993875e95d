#!/bin/bash
# Runs the test of every model in models/ as its author would: pytest in the model's folder, with the model's own
# requirements and the package `omni`. Called by `make test`, after setup/tools.sh test.
set -euo pipefail
cd "$(dirname "$0")/.."

export PYTHONPATH=$PWD/worker/python PYTHONDONTWRITEBYTECODE=1
for model in models/*/; do
    name=$(basename "$model")
    echo "model $name"
    (cd "$model" && "$OLDPWD/.omni/models/$name/bin/python" -m pytest -q -p no:cacheprovider)
done
