"""Embeddings, rerank and counts of tokens by the server. Pure, but for `count`."""

from __future__ import annotations

import array
import base64
import binascii
import sys

from omni import _json
from omni._engine.openai.failure import MOST, error_of
from omni._engine.openai.http import ServerError, ask
from omni._engine.openai.text import usage_of
from omni.errors import HTTPError
from omni.tasks import Scores, Vectors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from omni._engine.openai.http import Address
    from omni.generation import Usage
    from omni.tasks import Embeddings, Rerank

EMBEDDINGS = "/v1/embeddings"
RERANK = "/v1/rerank"
MAX_ANSWER = 128 * 1024 * 1024
"""Bytes of an answer: what the node takes of embeddings, in base64, and names around it."""


def embeddings_body(given: Embeddings, model: str) -> dict[str, Any]:
    """The body of a request for embeddings."""
    texts = given.texts if given.texts is not None else given.tokens
    body: dict[str, Any] = {"model": model, "input": texts, "encoding_format": "base64"}
    if given.dimensions is not None:
        body["dimensions"] = given.dimensions
    return body


def vectors(told: Any) -> Vectors:
    """The answer to a request for embeddings. Raises `ServerError`."""
    rows = _list(told, "data", "embedding")
    return Vectors([_vector(row) for row in rows], _usage(told))


def rerank_body(given: Rerank, model: str) -> dict[str, Any]:
    """The body of a rerank: all documents are scored, and the node chooses."""
    return {"model": model, "query": given.query, "documents": given.documents}


def scores(told: Any) -> Scores:
    """The answer to a rerank. Raises `ServerError`."""
    rows = _list(told, "results", "relevance_score")
    if not all(isinstance(row, (int, float)) for row in rows):
        raise ServerError("a score of the server is no number")
    return Scores([float(row) for row in rows], _usage(told))


def _list(told: Any, name: str, value: str) -> list[Any]:
    """The values of a list of the answer, in the order of their `index`."""
    rows = told.get(name) if isinstance(told, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and type(row.get("index")) is int for row in rows):
        raise ServerError(f"the server's answer has no list `{name}` with an `index` in each item")
    rows.sort(key=lambda row: row["index"])
    if [row["index"] for row in rows] != list(range(len(rows))):
        raise ServerError(f"`{name}` of the server's answer has not each index once")
    return [row.get(value) for row in rows]


def _vector(told: Any) -> array.array[float]:
    if isinstance(told, list):  # a server that does not know base64
        try:
            return array.array("f", told)
        except (TypeError, OverflowError):
            raise ServerError("an embedding of the server has something else than numbers") from None
    try:
        data = base64.b64decode(told, validate=True)
        vector = array.array("f", data)
    except (TypeError, ValueError, binascii.Error):
        raise ServerError("an embedding of the server is neither numbers nor base64 of them") from None
    if sys.byteorder == "big":
        vector.byteswap()
    return vector


def _usage(told: dict[str, Any]) -> Usage | None:
    used = told.get("usage")
    return usage_of(used) if isinstance(used, dict) else None


async def count(address: Address, model: str, given: Any) -> int:
    """The number of tokens of a prompt, which is text or messages, by what llama.cpp and vLLM have for it."""
    if isinstance(given, list):
        rendered = await told_by(address, "/apply-template", {"messages": given})
        if rendered is None:
            return _count(await told_by(address, "/tokenize", {"model": model, "messages": given}))
        given = rendered.get("prompt") if isinstance(rendered, dict) else None
    return _count(await told_by(address, "/tokenize", {"model": model, "prompt": given, "content": given}))


def _count(told: Any) -> int:
    if told is None:
        raise HTTPError(501, "this model cannot count tokens: its server has no `/tokenize`")
    found = told.get("count") if isinstance(told, dict) else None
    if type(found) is int:
        return found
    listed = told.get("tokens") if isinstance(told, dict) else None
    if not isinstance(listed, list):
        raise ServerError("the server's answer has neither `count` nor `tokens`")
    return len(listed)


async def told_by(address: Address, path: str, body: dict[str, Any]) -> Any:
    """The value of the server's answer; None where it has no such path."""
    exchange = await ask(address, "POST", path, _json.encode(body))
    try:
        if exchange.status == 404:
            return None
        if exchange.status != 200:
            raise error_of(exchange.status, await exchange.whole(MOST))
        return value_of(await exchange.whole(MAX_ANSWER))
    finally:
        exchange.close()


def value_of(data: bytes) -> Any:
    """The value of JSON. Raises `ServerError`."""
    try:
        return _json.decode(data)
    except (ValueError, RecursionError) as err:
        raise ServerError(f"the server's answer is no JSON: {err}") from None
