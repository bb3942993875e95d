"""Runs one model over HTTP on a laptop: `python -m omni run DIR`.

    program      order of events, exit codes, reload
    manifest     the keys of omni.toml that are read
    server       HTTP: connections, and the requests that come over them
    admission    requests that a node would refuse
    refusal      refusals, in the words of a node
    parameters   parameters of a JSON body
    form         forms with files
    job          a request that was read
    handling     calls of the handler: deadline, frames, failures
    answer       the answer to one request, as a node writes it
    native       the run API, for models of any kind
    native_task  the run API, for models that rank, transcribe, speak and draw
    native_text  the run API, for models that generate text
    openai       the OpenAI API
    template     chat templates
    guard        stop strings, limits and ends of generated text

The answers are those of a node (envelope, bytes, server-sent events, deadlines, failures); the isolation, limits,
queues and the cancellation by a client's hang-up are not: this is to try a handler, never to serve one. Threads read
requests; handlers run one at a time in the main thread, where a signal can interrupt them at their deadline.
"""
