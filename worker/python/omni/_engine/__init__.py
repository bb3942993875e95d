"""The program that runs a model inside its sandbox: `python /omni/python/omni/_engine/main.py`.

    main        descriptor 3, the order of events, exit codes
    control     messages with omni-worker
    zygote      imports once, forks often
    lingering   threads that preloaded modules leave running
    model       import, entry point, setup, healthcheck
    siblings    a model's files that are named like modules of Python's library
    after_import code that follows the import of a module
    children    the same for interpreters that `multiprocessing` starts
    entry       functions of the model: what they take, by their annotations
    wire        frames of the data connection: constants and encoding
    descriptors the engine's own sockets, and what a forked copy does with them
    connection  reading and writing frames, descriptors beside them
    request     requests that are read from the wire when they are asked for
    intake      requests and batches out of the frames of a connection
    answer      from a handler's result to frames
    kinds       requests that the node has read, as handlers' arguments
    generation  generated text as frames
    results     embeddings, scores, speech and images as frames
    validated   bodies as pydantic models
    counting    the number of a prompt's tokens
    batch       several requests in one call
    direct      a call without a connection, for tests and the local run
    output      what the model prints, and what its libraries log
    outcome     from a handler's failure to frames and log
    cancel      which requests are cancelled, and the thread that listens for it
    serial      `def` handlers, one at a time, in the main thread
    threads     `def` handlers, several at a time
    handling    one `def` handler call, for both
    tasks       `async def` handlers
    writer      frames out of an event loop

The protocol is defined by the crate omni-engine-protocol (`protocol/engine`); a test there compares the constants.
"""
