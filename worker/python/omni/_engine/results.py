"""Results of embeddings, rerank, speech and images as frames (`protocol/engine/src/task`). Pure."""

from __future__ import annotations

import array
import base64
import sys

from omni import media
from omni._engine import wire
from omni._engine.answer import Stream, error_of, whole
from omni._engine.generation import usage
from omni._json import encode
from omni.errors import Unserialisable
from omni.response import Response
from omni.tasks import Embeddings, Rerank, Scores, TextToImage, TextToSpeech, Transcription, Vectors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from omni.generation import Usage

_BYTES = (bytes, bytearray, memoryview)


def of_embeddings(number: int, result: Any, given: Embeddings) -> bytes | Stream:
    """A list of vectors, an array or a tensor, or `Vectors`."""
    if isinstance(result, Response):
        return error_of(number, result, "embeddings are a list of vectors, an array, or Vectors")
    vectors, used = (result.vectors, result.usage) if isinstance(result, Vectors) else (result, None)
    data = embeddings(vectors, len(given), used, given.dimensions)
    return whole(number, Response(data, media_type=wire.EMBEDDINGS_TYPE))


def embeddings(vectors: Any, count: int, used: Usage | None, dimensions: int | None = None) -> bytes:
    """The bytes of embeddings: length of the header, header, numbers. Raises `Unserialisable`."""
    rows = _rows(vectors)
    if len(rows) != count:
        raise Unserialisable(f"{len(rows)} embeddings for {count} inputs: one for each is needed")
    width = len(rows[0]) // 4 if rows else 0
    for at, row in enumerate(rows):
        if not row:
            raise Unserialisable(f"embedding {at} is empty")
        if len(row) != width * 4:
            raise Unserialisable(f"embedding {at} has {len(row) // 4} numbers, embedding 0 has {width}")
    if dimensions is not None and rows and width != dimensions:
        raise Unserialisable(
            f"embeddings of {width} numbers, {dimensions} were asked for: answer Response.error(400, …) to a request "
            "for dimensions that the model has not"
        )
    header: dict[str, object] = {"count": count, "dimensions": width}
    if used is not None:
        header["usage"] = usage(used)
    head = encode(header)
    return wire.HEAD_LENGTH.pack(len(head)) + head + b"".join(rows)


def _rows(vectors: Any) -> list[bytes]:
    """The numbers of each vector, 32 bits each, little-endian."""
    vectors = _on_host(vectors)
    if hasattr(vectors, "astype") and hasattr(vectors, "ndim"):
        if vectors.ndim != 2:
            raise Unserialisable(f"embeddings are an array of two dimensions, not of {vectors.ndim}")
        return [_row(row, at) for at, row in enumerate(vectors.astype("<f4"))]
    if isinstance(vectors, (str, *_BYTES, dict)) or not hasattr(vectors, "__iter__"):
        raise Unserialisable(f"embeddings are a list of vectors, not {type(vectors).__qualname__}")
    return [_row(_on_host(vector), at) for at, vector in enumerate(vectors)]


def _on_host(value: Any) -> Any:
    """A tensor of PyTorch as an array, which lies in this process's memory; anything else as it is."""
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        return value.detach().cpu().float().numpy()
    return value


def _row(vector: Any, at: int) -> bytes:
    if hasattr(vector, "astype"):
        if vector.ndim != 1:
            raise Unserialisable(f"embedding {at} is an array of {vector.ndim} dimensions, one is needed")
        data: bytes = vector.astype("<f4").tobytes()
        numbers = array.array("f", data)
    else:
        try:
            numbers = vector if isinstance(vector, array.array) and vector.typecode == "f" else array.array("f", vector)
        except (TypeError, OverflowError) as err:
            raise Unserialisable(f"embedding {at} is no vector of numbers: {err}") from None
        if sys.byteorder == "big":
            numbers = array.array("f", numbers)
            numbers.byteswap()
        data = numbers.tobytes()
    if sys.byteorder == "little" and not abs(sum(numbers)) < float("inf"):
        for place, value in enumerate(numbers):
            if value - value != 0:
                raise Unserialisable(f"embedding {at}: number {place} is {value}")
    return data


def of_rerank(number: int, result: Any, given: Rerank) -> bytes | Stream:
    """A number for each document, or `Scores`."""
    if isinstance(result, Response):
        return error_of(number, result, "a rerank answers with a number for each document")
    scores, used = (result.scores, result.usage) if isinstance(result, Scores) else (result, None)
    scores = _on_host(scores)
    try:
        numbers = [float(score) for score in scores]
    except (TypeError, ValueError):
        raise Unserialisable(
            f"a rerank answers with a list of numbers, not with {type(result).__qualname__}: one for each document"
        ) from None
    if len(numbers) != len(given.documents):
        raise Unserialisable(f"{len(numbers)} scores for {len(given.documents)} documents: one for each is needed")
    answer: dict[str, object] = {"scores": numbers}
    if used is not None:
        answer["usage"] = usage(used)
    return whole(number, answer)


def of_speech_to_text(number: int, result: Any, given: object) -> bytes | Stream:
    """Text, or a `Transcription`."""
    if isinstance(result, str):
        return whole(number, {"text": result})
    if isinstance(result, Response):
        return error_of(number, result, "a transcription is text, or a Transcription")
    if not isinstance(result, Transcription):
        raise Unserialisable(f"a transcription is text, or a Transcription, not {type(result).__qualname__}")
    if not isinstance(result.text, str):
        raise Unserialisable(f"the text of a Transcription is str, not {type(result.text).__qualname__}")
    made = {name: value for name, value in vars(result).items() if value is not None and value != []}
    made["text"] = result.text
    return whole(number, made)


class SpeechStream(Stream):
    """Bytes of an audio file in parts."""

    __slots__ = ()

    def _part(self, item: object) -> bytes:
        raise Unserialisable(f"speech is bytes of an audio file, not {type(item).__qualname__}")


def of_text_to_speech(number: int, result: Any, given: TextToSpeech) -> bytes | Stream:
    """Bytes, whole or in parts, or a `Response` with bytes."""
    in_parts = hasattr(result, "__next__") or hasattr(result, "__aiter__")
    if isinstance(result, _BYTES) or in_parts:
        kind = None if in_parts else media.type_of(bytes(memoryview(result)[:16]))
        kind = kind or media.audio_type(given.format) or "application/octet-stream"
        if in_parts:
            return SpeechStream(number, result, 200, {"media_type": kind}, wire.BYTES)
        return whole(number, Response(result, media_type=kind))
    if isinstance(result, Response):
        if result.kind == "whole" and not isinstance(result.body, _BYTES):
            raise Unserialisable(f"speech is bytes of an audio file, not {type(result.body).__qualname__}")
        return whole(number, result)
    raise Unserialisable(f"speech is bytes of an audio file, not {type(result).__qualname__}")


def of_text_to_image(number: int, result: Any, given: TextToImage) -> bytes | Stream:
    """An image, or a list of images: bytes of files, or Pillow's."""
    if isinstance(result, Response):
        if result.kind == "error":
            return whole(number, result)
        result = result.body
    images = list(result) if isinstance(result, (list, tuple)) else [result]
    if len(images) != given.n:
        raise Unserialisable(f"{len(images)} images, {given.n} were asked for")
    made = []
    for at, image in enumerate(images):
        try:
            data, media_type = media.image_file(image)
        except ValueError as err:
            raise Unserialisable(f"image {at}: {err}") from None
        made.append({"media_type": media_type, "data": base64.b64encode(data).decode()})
    answer = encode({"images": made})
    if len(answer) > wire.MAX_ANSWER:
        return whole(number, Response(answer, media_type="application/json"))
    return wire.json_response(number, answer)
