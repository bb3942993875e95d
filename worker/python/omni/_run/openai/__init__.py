"""The OpenAI API of the local run: the routes of a node for the kind of this one model.

    routes      paths of the API
    failure     errors in the form of the API
    message     messages of a conversation, tools, the choice between them
    chat        requests for chat completions
    completion  requests for completions
    sampling    parameters that both have
    encoder     their answers: events, or one document
    text        calls of the handler for them
    task        embeddings, rerank, speech, images
    audio       forms with a recording, and the formats of a transcription

Parameters, bounds, answers and refusals are a node's (`gateway/openai`). Tool calls and reasoning within text, and JSON
Schemas, are left to the node: requests that need them are refused.
"""
