"""Speed of llama.cpp, for engine_speed.py: run by a Python that has llama-cpp-python.

Usage: llama_speed.py version
       llama_speed.py quantise FROM TO FTYPE
       llama_speed.py measure FILE THREADS PROMPT DEPTH BATCHES    (tokens a second, as JSON)
       llama_speed.py first FILE THREADS                           (seconds from the load to the first token, as JSON)

As `omni-engine bench` does: one step before a prompt is measured, answers of so many seconds from a depth on.
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
import time
from typing import Any

import llama_cpp as llama

SPAN = 1.5  # seconds
ROOM = 1024  # further positions of a sequence
FEWEST = 8


@llama.llama_log_callback
def silent(*_: object) -> None:
    """A receiver of messages."""


class Model:
    """A loaded model."""

    def __init__(self, path: str, threads: int) -> None:
        self.threads = threads
        self.model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
        if not self.model:
            sys.exit(f"{path} cannot be loaded")
        self.vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))


class Context:
    """A cache for some sequences, and steps on it."""

    def __init__(self, model: Model, sequences: int, positions: int, together: bool = False) -> None:
        parameters = llama.llama_context_default_params()
        parameters.n_ctx = sequences * positions
        parameters.n_batch = 2048
        parameters.n_ubatch = 512
        parameters.n_seq_max = sequences
        parameters.n_threads = parameters.n_threads_batch = model.threads
        parameters.kv_unified = together
        self.model = model
        self.context = llama.llama_init_from_model(model.model, parameters)
        if not self.context:
            sys.exit("no context")

    def step(self, entries: list[tuple[int, int, int, bool]]) -> None:
        """Computes tokens: each with its position, its sequence, and whether its logits are wanted."""
        batch: Any = llama.llama_batch_init(len(entries), 0, 1)
        batch.n_tokens = len(entries)
        for at, (token, position, sequence, logits) in enumerate(entries):
            batch.token[at] = token
            batch.pos[at] = position
            batch.n_seq_id[at] = 1
            batch.seq_id[at][0] = sequence
            batch.logits[at] = logits
        if llama.llama_decode(self.context, batch):
            sys.exit("a step has failed")
        llama.llama_synchronize(self.context)
        llama.llama_batch_free(batch)

    def prompt(self, tokens: int, sequence: int = 0) -> None:
        chance = random.Random(tokens)
        chosen = (chance.randrange(self.model.vocabulary) for _ in range(tokens))
        self.step([(token, at, sequence, at == tokens - 1) for at, token in enumerate(chosen)])

    def clear(self) -> None:
        llama.llama_memory_clear(llama.llama_get_memory(self.context), True)

    def free(self) -> None:
        llama.llama_free(self.context)


def prefill(model: Model, tokens: int) -> float:
    context = Context(model, 1, tokens)
    context.prompt(tokens)
    context.clear()
    begun = time.perf_counter()
    context.prompt(tokens)
    speed = tokens / (time.perf_counter() - begun)
    context.free()
    return speed


def decode(model: Model, batch: int, depth: int, together: bool) -> float:
    context = Context(model, batch, depth + ROOM, together)
    for sequence in range(batch):
        context.prompt(depth, sequence)
    steps, begun = 0, time.perf_counter()
    while (time.perf_counter() - begun < SPAN or steps < FEWEST) and steps < ROOM:
        tokens = ((steps * 7919 + sequence) % model.vocabulary for sequence in range(batch))
        context.step([(token, depth + steps, sequence, True) for sequence, token in enumerate(tokens)])
        steps += 1
    speed = batch * steps / (time.perf_counter() - begun)
    context.free()
    return speed


def measure(path: str, threads: int, prompt: int, depth: int, batches: list[int]) -> dict[str, object]:
    model = Model(path, threads)
    answers = {}
    for batch in batches:
        # A cache that all sequences share, and one for each: the faster one counts.
        forms = (False, True) if batch > 1 else (False,)
        answers[str(batch)] = max(decode(model, batch, depth, together) for together in forms)
    return {"prefill": prefill(model, prompt), "decode": answers}


def first(path: str, threads: int) -> dict[str, object]:
    begun = time.perf_counter()
    model = Model(path, threads)
    context = Context(model, 1, 512)
    context.prompt(6)
    logits = llama.llama_get_logits_ith(context.context, -1)
    max(range(model.vocabulary), key=logits.__getitem__)
    return {"seconds": time.perf_counter() - begun}


def quantise(source: str, target: str, kind: int) -> None:
    parameters = llama.llama_model_quantize_default_params()
    parameters.ftype = kind
    if llama.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(parameters)):
        sys.exit(f"{source} cannot be quantised")


def main() -> None:
    llama.llama_log_set(silent, ctypes.c_void_p(0))
    llama.llama_backend_init()
    match sys.argv[1:]:
        case ["version"]:
            print(f"llama-cpp-python {llama.__version__}: {llama.llama_print_system_info().decode()}")
        case ["quantise", source, target, kind]:
            quantise(source, target, int(kind))
        case ["measure", path, threads, prompt, depth, batches]:
            wanted = [int(batch) for batch in batches.split(",")]
            print(json.dumps(measure(path, int(threads), int(prompt), int(depth), wanted)))
        case ["first", path, threads]:
            print(json.dumps(first(path, int(threads))))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
