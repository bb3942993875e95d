"""Answers of `/ai/run` to requests whose answer is no plain value: generated text and embeddings, as a node renders
them for the Workers AI API. The routes of other APIs are rendered beside this, from the same pieces.
"""

from __future__ import annotations

import codecs

from omni import _json, _received
from omni._engine import wire
from omni._engine.answer import Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from omni._run.answer import Answer
    from omni._run.handling import Handling
    from omni._run.job import Head


def is_text(last: bytes | Stream) -> bool:
    """True for generated text."""
    return isinstance(last, Stream) and last.content == wire.EVENT


def is_embeddings(last: bytes | Stream) -> bool:
    """True for embeddings, which are bytes on a node's own wire."""
    if isinstance(last, Stream):
        return last.media_type == wire.EMBEDDINGS_TYPE
    _, _, flags, _, _ = wire.HEADER.unpack_from(last)
    return flags & wire.HEAD != 0 and wire.EMBEDDINGS_TYPE.encode() in last[: wire.HEADER_LENGTH + 128]


class Run:
    """A request of the run API."""

    def __init__(self, head: Head, body: bytes) -> None:
        self.head = head
        self._request = head.request(body)

    def answer(self, calls: Handling, client: Answer) -> None:
        """Answers the request."""
        last = calls.call(self._request)
        if is_embeddings(last):
            vectors, width, _ = _received.embeddings(calls.content(last))
            self._write(calls, client, {"shape": [len(vectors), width], "data": vectors})
        elif is_text(last):
            assert isinstance(last, Stream)
            self._answer_text(last, calls, client)
        else:
            calls.write(last, client)

    def _answer_text(self, last: Stream, calls: Handling, client: Answer) -> None:
        text = GeneratedText()
        if self._request.body.json.get("stream") is not True:
            for flags, payload in calls.pieces(last):
                text.take(flags, payload)
            text.end()
            self._write(calls, client, text.whole())
            return
        for flags, payload in calls.pieces(last):
            _write_text(client, text.take(flags, payload))
        _write_text(client, text.end())
        if text.last():
            client.event(_json.encode({"response": "", **text.last()}))
        client.end()

    def _write(self, calls: Handling, client: Answer, value: object) -> None:
        calls.in_time()
        client.whole(wire.json_response(0, _json.encode(value)))


def _write_text(client: Answer, text: str) -> None:
    if not client.opened:
        client.open_events()
    if text:
        client.piece(wire.TEXT, text.encode())


class GeneratedText:
    """Collects the pieces of generated text."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._text: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._usage: dict[str, int] | None = None

    def take(self, flags: int, payload: bytes) -> str:
        """Takes a piece; the text that it completes. Reasoning has no place in this form."""
        if flags == wire.EVENT:
            event = _json.decode(payload)
            kind = event["type"]
            if kind == "tool-call":
                self._calls.append({"name": event["name"], "arguments": _arguments(event["arguments"])})
            elif kind == "finish":
                self._usage = event.get("usage")
            payload = b""
            if kind == "token":
                payload = bytes(event["bytes"]) if "bytes" in event else event["text"].encode()
        return self._add(self._decode(payload))

    def end(self) -> str:
        """The text of a character that has no end."""
        return self._add(self._decode(b"", True))

    def _add(self, text: str) -> str:
        self._text.append(text)
        return text

    def whole(self) -> dict[str, Any]:
        """The whole answer."""
        return {"response": "".join(self._text), **self.last()}

    def last(self) -> dict[str, Any]:
        """Fields beside the text."""
        fields: dict[str, Any] = {"tool_calls": self._calls} if self._calls else {}
        if self._usage is not None:
            prompt, completion = self._usage["prompt_tokens"], self._usage["completion_tokens"]
            total = prompt + completion
            fields["usage"] = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}
        return fields


def _arguments(text: str) -> Any:
    try:
        return _json.decode(text.encode())
    except (ValueError, RecursionError):
        return text
