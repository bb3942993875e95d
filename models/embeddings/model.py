"""Sentence embeddings with the real all-MiniLM-L6-v2 weights: texts of near meaning get near vectors.

Over `/v1/embeddings`, or `/ai/run` as the embedding models of Workers AI are asked:

Input:  {"text": "one text"} or {"text": ["some", "texts"]}; the first 256 tokens of each count
Answer: {"shape": [n, 384], "data": [[...], ...]}; every vector has length 1, so a dot product is the cosine.
"""

import numpy as np
from omni import Embeddings, Usage, Vectors, errors
from weights import bert, tokenizer

# Bounds the memory of one forward pass: the attention scores of a full batch take 12 MiB.
TOKENS_PER_BATCH = 1024


def handle_request(request: Embeddings, context):
    if request.texts is None:
        raise errors.BadRequest("this model takes texts, not token ids: its vocabulary is its own", "input")
    if request.dimensions not in (None, bert.width):
        raise errors.BadRequest(f"the vectors of this model have {bert.width} dimensions", "dimensions")
    rows = [encoding.ids for encoding in tokenizer.encode_batch(request.texts)]
    return Vectors(embed(rows), Usage(prompt_tokens=sum(map(len, rows))))


def embed(rows):
    """Vectors of lists of token ids, f32 [texts, 384], in their order."""
    vectors = np.empty((len(rows), bert.width), np.float32)
    for batch in batches([len(row) for row in rows]):
        lengths = np.array([len(rows[index]) for index in batch])
        ids = np.zeros((len(batch), lengths.max()), np.int64)
        for line, index in enumerate(batch):
            ids[line, : lengths[line]] = rows[index]
        vectors[batch] = bert.encode(ids, lengths)
    return vectors


def batches(lengths):
    """Groups indices into batches of like length, so that little of a batch is padding."""
    batch, widest = [], 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        widest = lengths[index]
        if batch and (len(batch) + 1) * widest > TOKENS_PER_BATCH:
            yield batch
            batch = []
        batch.append(index)
    yield batch
