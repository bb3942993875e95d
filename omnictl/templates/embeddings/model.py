"""MODEL_NAME: turns texts into vectors. Here texts of like spelling are near each other; put your model in the place of
`vector`.

The node serves it at `/v1/embeddings` and `/ai/run`.
"""

import math
import zlib

from omni import Embeddings, Usage, Vectors, errors

WIDTH = 64


def handle_request(request: Embeddings, context):
    if request.texts is None:
        raise errors.BadRequest("this model takes texts, not token ids", "input")
    if request.dimensions not in (None, WIDTH):
        raise errors.BadRequest(f"the vectors of this model have {WIDTH} dimensions", "dimensions")
    tokens = sum(len(text.split()) for text in request.texts)
    return Vectors([vector(text) for text in request.texts], Usage(prompt_tokens=tokens))


def vector(text):
    """The counts of groups of three letters, as a vector of length 1."""
    counts = [0.0] * WIDTH
    padded = f"  {text.lower()} "
    for at in range(len(padded) - 2):
        counts[zlib.crc32(padded[at : at + 3].encode()) % WIDTH] += 1
    length = math.sqrt(sum(count * count for count in counts))
    return [count / length for count in counts]
