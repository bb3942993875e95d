#!/bin/bash
# Runs the tests of the models in models/ as their authors would: pytest in the model's folder, with the model's own
# requirements and the package `omni`. Called by `make test`, after setup/tools.sh test.
set -euo pipefail
cd "$(dirname "$0")/.."

export PYTHONPATH=$PWD/worker/python PYTHONDONTWRITEBYTECODE=1
untested=()
for model in models/*/; do
    name=$(basename "$model")
    if ! compgen -G "${model}test_*.py" >/dev/null; then
        untested+=("$name")
        continue
    fi
    echo "model $name"
    (cd "$model" && "$OLDPWD/.omni/models/$name/bin/python" -m pytest -q -p no:cacheprovider)
done
echo "models without tests of their own, which only a node runs (tests/functional/examples.rs): ${untested[*]:-none}"
