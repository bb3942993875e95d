"""Sentence embeddings with the real all-MiniLM-L6-v2 weights: texts of near meaning get near vectors.

Input:  {"text": "one text"} or {"text": ["some", "texts"]}, at most 100; the first 256 tokens of each count
Answer: {"shape": [n, 384], "data": [[...], ...]}, as the embedding models of Workers AI answer; every vector has
        length 1, so a dot product is the cosine.
"""

import numpy as np
from omni import Response
from weights import bert, tokenizer

MOST_TEXTS = 100
# Bounds the memory of one forward pass: the attention scores of a full batch take 12 MiB.
TOKENS_PER_BATCH = 1024


def handle_request(request, context):
    body = request.body.json
    texts = body.get("text") if isinstance(body, dict) else None
    if isinstance(texts, str):
        texts = [texts]
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        return Response.error(400, '"text" must be a text or a list of texts')
    if len(texts) > MOST_TEXTS:
        return Response.error(400, f"at most {MOST_TEXTS} texts in one request")
    vectors = embed(texts)
    return {"shape": list(vectors.shape), "data": vectors.tolist()}


def embed(texts):
    """f32 [texts, 384], in the order of `texts`."""
    rows = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
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
