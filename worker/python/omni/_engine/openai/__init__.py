"""Engine of a model that is a server with the OpenAI API: starts the server, and asks it what the node asks.

    model     the server as a model: what the runner calls for a request
    server    the server's process: start, health, end
    http      HTTP/1.1 to it
    text      text generation: bodies of requests, events as pieces of an answer
    tasks     embeddings, rerank, counts of tokens
    failure   the server's errors as those of a handler
    metrics   the server's own metrics for the node
    sleep     sleep and wake-up of a server that gives up its GPU memory itself

Invariant: what a request asks for reaches the server, or was refused by the node; nothing is left out.
"""
