"""Rules for generated text, as a node applies them to every engine (`gateway/generation/src/guard`): whole characters,
stop strings, a limit of tokens, one end with one usage.

    open ──piece──▶ open
      │ └─ stop string, limit of tokens ──▶ ended
      └─── end of the handler ────────────▶ ended

Invariants: the text that leaves is the handler's own up to the first stop string, whatever pieces it came in; at most
one stop string's length is held back; nothing leaves after the end.
"""

from __future__ import annotations

import codecs
import uuid
from dataclasses import dataclass, field

from omni.generation import Finish, Reasoning, Token, ToolCall, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from omni.generation import Piece


@dataclass
class Limits:
    """Limits of one choice."""

    stop: list[str] = field(default_factory=list)
    """Stop strings."""
    pieces: int | None = None
    """Most pieces, for models that do not count their tokens."""
    prompt_tokens: int = 0
    """Tokens of the prompt, for handlers that report no usage."""
    calls: int | None = None
    """Most tool calls."""


@dataclass
class Call:
    """A tool call."""

    index: int
    id: str
    name: str
    arguments: str


@dataclass
class Delta:
    """A part of a choice."""

    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    """Tokens whose whole text has left."""
    reasoning: str = ""
    call: Call | None = None


class Guard:
    """The rules for one choice. `reason` and `usage` are its end."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._stops = StopMatcher(limits.stop)
        self._tokens: list[tuple[int, Token]] = []
        """Tokens whose text is held back, with the offset of its end."""
        self._received = 0
        self._released = 0
        self._pieces = 0
        self._calls = 0
        self.reason = "stop"
        self.usage = Usage(limits.prompt_tokens)

    def deltas(self, pieces: Iterable[Piece]) -> Iterator[Delta]:
        """The parts of the choice; the pieces are not walked beyond its end."""
        counted = self.usage
        finish = Finish()
        for piece in pieces:
            if isinstance(piece, Finish):
                finish = piece
            elif isinstance(piece, Reasoning):
                yield Delta(reasoning=piece.text)
            elif isinstance(piece, ToolCall):
                if self._limits.calls is None or self._calls < self._limits.calls:
                    yield Delta(call=self._call(piece))
            else:
                delta, ended = self._push(piece)
                if delta.text or delta.tokens:
                    yield delta
                if ended:
                    break
                if self._limits.pieces is not None and counted.completion_tokens >= self._limits.pieces:
                    finish = Finish("length", counted)
                    break
        if not self._stops.ended:
            delta = self._end()
            if delta.text or delta.tokens:
                yield delta
        self._finish(finish)

    def _finish(self, finish: Finish) -> None:
        if not self._stops.ended:
            self.reason = (finish.reason or "stop").replace("-", "_")
        if finish.usage is not None:
            self.usage = finish.usage
        if self._calls and self.reason == "stop":
            self.reason = "tool_calls"

    def _push(self, piece: str | bytes | Token) -> tuple[Delta, bool]:
        token = piece if isinstance(piece, Token) else None
        text = piece.text if isinstance(piece, Token) else piece
        data = text.encode() if isinstance(text, str) else text
        if data or token is not None:
            self.usage.completion_tokens += 1
        delta = self._take(self._decode(data), token)
        return delta, self._stops.ended

    def _take(self, text: str, token: Token | None = None) -> Delta:
        self._received += len(text)
        if token is not None:
            self._tokens.append((self._received, token))
        delta = self._released_with(self._stops.push(text))
        if self._stops.ended:
            self._tokens.clear()
        return delta

    def _end(self) -> Delta:
        """The text that was held back."""
        delta = self._take(self._decode(b"", True))
        if not self._stops.ended:
            last = self._released_with(self._stops.rest())
            delta = Delta(delta.text + last.text, delta.tokens + last.tokens)
            delta.tokens += [token for _, token in self._tokens]
        return delta

    def _released_with(self, text: str) -> Delta:
        self._released += len(text)
        delta = Delta(text)
        while self._tokens and self._tokens[0][0] <= self._released:
            delta.tokens.append(self._tokens.pop(0)[1])
        return delta

    def _call(self, call: ToolCall) -> Call:
        self._calls += 1
        assert isinstance(call.arguments, str)
        id = call.id or f"call_{uuid.uuid4().hex[:16]}"
        return Call(self._calls - 1, id, call.name, call.arguments or "{}")


class StopMatcher:
    """Stop strings in text that comes in pieces. Of several that end at the same place the longest counts."""

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.ended = False
        """True once a stop string is complete."""

    def push(self, text: str) -> str:
        """Takes text; the part of it that may leave."""
        if not self._stops or self.ended:
            return "" if self.ended else text
        held = self._held + text
        found = [(held.find(stop) + len(stop), -len(stop)) for stop in self._stops if stop in held]
        if found:
            end, length = min(found)
            self.ended, self._held = True, ""
            return held[: end + length]
        keep = max(_overlap(held, stop) for stop in self._stops)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def rest(self) -> str:
        """The text that was held back."""
        rest, self._held = self._held, ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of the text that begins the stop string."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
