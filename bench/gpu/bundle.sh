#!/usr/bin/env bash
# Packs the GPU test for a machine with a GPU that has neither Rust nor a network: programs of `make build`, the
# scenarios, one script. Called by `make gpu-bundle`; writes target/omni-gpu-test.tar.gz, below 60 MiB.
set -euo pipefail
cd "$(dirname "$0")/../.."

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
to=$folder/omni-gpu-test
mkdir -p "$to/bin/cuda-sim" "$to/bench/gpu"
for program in omni-scheduler omni-launcher omni-worker omnictl uv libomni_cuda.so libomni_cuda_proxy.so cuda-sim-card; do
    install -m 755 "target/release/$program" "$to/bin/"
done
install -m 755 target/release/cuda-sim/* "$to/bin/cuda-sim/"
install -m 644 bench/node.py "$to/bench/"
install -m 644 bench/gpu/*.py "$to/bench/gpu/"
cat >"$to/gpu-test" <<'SCRIPT'
#!/usr/bin/env bash
# Runs the GPU test of Omni on this machine's card. PYTHON names the interpreter, best one with PyTorch; as root.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
OMNI_BIN=$here/bin exec "${PYTHON:-python3}" -u "$here/bench/gpu/run.py" "$@"
SCRIPT
chmod 755 "$to/gpu-test"

tar -C "$folder" -czf target/omni-gpu-test.tar.gz omni-gpu-test
size=$(stat -c %s target/omni-gpu-test.tar.gz)
echo "target/omni-gpu-test.tar.gz: $((size >> 20)) MiB"
if ((size >= 60 << 20)); then
    echo "the bundle is not below 60 MiB" >&2
    exit 1
fi
