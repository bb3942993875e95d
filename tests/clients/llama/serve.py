"""llama.cpp's server, as the package xllamacpp has it: `python serve.py SOCKET WEIGHTS ROLE`.

Roles: chat; single, with one slot; sleep, when it was idle for a second; embeddings.
"""

import signal
import sys

import xllamacpp

address, weights, *roles = sys.argv[1:]
params = xllamacpp.CommonParams()
params.model.path = weights
params.model_alias = {"noise"}
params.hostnames = [address]
params.n_ctx = 4096
params.n_parallel = 1 if "single" in roles else 4
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.endpoint_metrics = True
if "embeddings" in roles:
    params.embedding = True
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
if "sleep" in roles:
    params.sleep_idle_seconds = 1
server = xllamacpp.Server(params)
signal.pause()
