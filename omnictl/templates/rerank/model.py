"""MODEL_NAME: orders documents by their relevance for a query. Here that is the share of the query's words that a
document has; put your model in the place of `relevance`.

The node serves it at `/v1/rerank` and `/ai/run`, and chooses the documents that the client gets: score all.
"""

from omni import Rerank


def handle_request(request: Rerank, context):
    wanted = words(request.query)
    return [relevance(wanted, document) for document in request.documents]


def relevance(wanted, document):
    return len(wanted & words(document)) / max(1, len(wanted))


def words(text):
    return {word.strip(".,;:!?\"'()") for word in text.lower().split()}
