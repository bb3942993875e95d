"""A batch: several requests that a handler answers in one call.

    taken ──list of results─────────────▶ each member's last frame
      ├────generator of lists──(pieces)──▶ each member's last frame
      └────exception, where batches are isolated──▶ two halves, each a batch

A member leaves when it ends (its last piece, an error of its own, the end of the generator) or is cancelled; its place
in later lists is ignored. Invariant: each member gets exactly one last frame, made by `end`.
"""

from __future__ import annotations

from omni import _log
from omni._engine import cancel, outcome, wire
from omni._engine.answer import Stream
from omni.context import Context, request_now
from omni.errors import HTTPError, Unserialisable
from omni.response import Response

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from typing import Any

    from omni._engine.cancel import Cancels
    from omni._engine.entry import Entry
    from omni._engine.request import WireRequest
    from omni.context import Instance
    from omni.request import Headers


class Member:
    """A request of a batch."""

    __slots__ = ("credit", "flight", "given", "is_over", "is_taken", "number", "request", "stream")

    def __init__(self, number: int, request: WireRequest) -> None:
        self.number = number
        self.request = request
        self.given: Any = None
        """The handler's argument."""
        self.stream: Stream | None = None
        """The stream of the answer, where the handler yields lists."""
        self.credit = wire.INITIAL_CREDIT
        self.flight: Any = None
        """The same in an event loop: an `InFlight`."""
        self.is_taken = False
        """True if the handler was called with it."""
        self.is_over = False


class Requests:
    """The requests of a batch, for its context."""

    __slots__ = ("_members",)

    def __init__(self, members: list[Member]) -> None:
        self._members = members

    @property
    def headers(self) -> Headers:
        """Headers of the first member, for its trace."""
        return self._members[0].request.headers

    @property
    def deadline(self) -> float | None:
        """The earliest deadline."""
        known = [member.request.deadline for member in self._members]
        return min((deadline for deadline in known if deadline is not None), default=None)


class Batch:
    """A batch on its way through a handler."""

    def __init__(self, number: int, members: list[Member], entry: Entry, cancels: Cancels, isolates: bool) -> None:
        self.number = number
        self.members = members
        self.isolates = isolates
        """The members are divided and handled again if the handler raises."""
        self._entry = entry
        self._cancels = cancels
        self._context: Context | None = None
        self._taken: list[Member] = []
        """Members that the handler was called with, in order."""
        self._left = len(members)
        self._steps = 0
        cancels.gather(number, [member.number for member in members])

    def context(self, instance: Instance) -> Context:
        """The context of the call: cancelled when all members are, due when the first of them is. Its usage counts for
        the model."""
        requests: Any = Requests(self.members)
        context = self._context = Context(instance, requests, self._cancels, self.number)
        return context

    @property
    def is_cancelled(self) -> bool:
        """True once all members are cancelled."""
        return self._cancels.reason(self.number) is not None

    @property
    def is_over(self) -> bool:
        """True once every member has its last frame."""
        return self._left == 0

    async def gather(self) -> None:
        """Reads streamed bodies to their ends, in an event loop."""
        for member in self.members:
            if member.request.is_streamed:
                try:
                    await member.request.gather()
                except Exception as err:
                    member.given = err

    def take(self) -> list[Any]:
        """The handler's argument: members that are cancelled or malformed are not in it."""
        for member in self.members:
            if self._cancels.reason(member.number) is not None or isinstance(member.given, Exception):
                continue
            take = self._entry.take
            try:
                member.given = member.request if take is None else take(member.request)
            except Exception as err:
                member.given = err
            else:
                member.is_taken = True
                self._taken.append(member)
        return [member.given for member in self._taken]

    def left_out(self) -> Iterator[tuple[Member, bytes]]:
        """The last frames of members that the handler was not called with."""
        for member in self.members:
            if not member.is_taken:
                reason = self._cancels.reason(member.number)
                last = cancel.frame(member.number, reason) if reason is not None else _failure(member, member.given)
                yield member, self.end(member, last)

    def results(self, result: Any) -> Iterator[tuple[Member, bytes | Stream]]:
        """Each member's last frame, or its stream, whose last frame is left to `end`."""
        items = checked(result, len(self._taken), "returned")
        for member, item in zip(self._taken, items):
            reason = self._cancels.reason(member.number)
            if reason is not None:
                yield member, self.end(member, cancel.frame(member.number, reason))
                continue
            try:
                made = self._made(member, item)
            except BaseException as err:  # of the model's own, which may be called to write its values
                made = _failure(member, err)
            yield member, self.end(member, made) if isinstance(made, bytes) else made

    def _made(self, member: Member, item: Any) -> bytes | Stream:
        if isinstance(item, HTTPError):
            raise item
        if hasattr(item, "__next__") or hasattr(item, "__aiter__"):
            raise Unserialisable("a result of the handler of batches comes in pieces: to stream, yield lists of pieces")
        return self._entry.frames(member.number, item, member.given)

    def open_streams(self) -> None:
        """Begins the members' streams, for a handler that yields lists."""
        for member in self._taken:
            made = self._entry.frames(member.number, iter(()), member.given)
            assert isinstance(made, Stream)
            member.stream = made

    def pieces(self, step: Any) -> Iterator[tuple[Member, Any]]:
        """The pieces of one list, without those of members that have left."""
        self._steps += 1
        for member, piece in zip(self._taken, checked(step, len(self._taken), f"yielded as list {self._steps}")):
            if not member.is_over and (piece is not None or self._cancels.reason(member.number) is not None):
                yield member, piece

    def leaves(self, member: Member, piece: Any) -> bytes:
        """The last frame of a member that leaves instead of getting this piece; empty where it stays."""
        reason = self._cancels.reason(member.number)
        if reason is not None:
            return self.end(member, cancel.frame(member.number, reason))
        if isinstance(piece, Response) and piece.kind == "error":
            piece = HTTPError(piece.status, piece.body)
        return self.end(member, _failure(member, piece)) if isinstance(piece, HTTPError) else b""

    def failed_piece(self, member: Member, error: BaseException) -> bytes:
        """The last frame of a member whose piece could not be sent."""
        return self.end(member, _failure(member, error, self._cancels.reason(member.number)))

    def completed(self, member: Member) -> bytes:
        """The last frames of a stream."""
        assert member.stream is not None
        return self.end(member, member.stream.opening() + wire.end(member.number))

    def open_members(self) -> list[Member]:
        """Members that have no last frame yet."""
        return [member for member in self.members if not member.is_over]

    def end(self, member: Member, last: bytes) -> bytes:
        """Marks the end of a member. The usage of the batch goes with the last one."""
        member.is_over = True
        self._left -= 1
        if self._context is not None and self._context._usage and self.is_over:
            last = wire.usage(member.number, self._context._usage) + last
        self._cancels.forget(member.number)
        return last

    def failed(self, error: BaseException) -> bytes:
        """The last frames of all open members after `error`."""
        whole = self._cancels.reason(self.number)
        frames, failed = [], []
        for member in self.open_members():
            reason = self._cancels.reason(member.number)
            if reason is not None and whole is None:
                frames.append(self.end(member, cancel.frame(member.number, reason)))
            else:
                failed.append(member)
        numbers = [member.number for member in failed]
        if numbers:
            last = outcome.failed_batch(numbers, error, whole, skip=1)
            for member in failed[:-1]:
                self.end(member, b"")
            frames.append(self.end(failed[-1], last))
        return b"".join(frames)

    def halves(self, error: BaseException) -> list[list[Member]]:
        """The members in two parts, to be handled again after `error`. None where batches are not isolated, some of the
        answers have begun, no client waits, or the handler made what cannot be sent."""
        members = self.open_members()
        begun = self._left < len(self.members) or any(member.stream and member.stream.opened for member in members)
        if not self.isolates or len(members) < 2 or begun or self.is_cancelled or isinstance(error, Unserialisable):
            return []
        what = f"the handler of batches raised {type(error).__name__}"
        _log.report("WARNING", f"{what}: {len(members)} requests are divided")
        half = (len(members) + 1) // 2
        return [members[:half], members[half:]]

    def part(self, members: list[Member]) -> Batch:
        """A batch of these members, which are as they were when they came."""
        for member in members:
            member.given, member.stream, member.is_taken = None, None, False
        return Batch(self.number, members, self._entry, self._cancels, self.isolates)

    def forget(self) -> None:
        """Forgets the cancellation of the batch."""
        self._cancels.forget(self.number)

    def close(self) -> None:
        """Gives back the descriptors of the members' bodies, and forgets the batch."""
        for member in self.members:
            member.request.close()
        self.forget()


def _failure(member: Member, error: BaseException, reason: int | None = None) -> bytes:
    """The last frame of a member that fails alone; lines of the log have its id."""
    token = request_now.set(member.request)
    try:
        return outcome.failed(member.number, error, reason, skip=1)
    finally:
        request_now.reset(token)


def only(result: Any) -> Any:
    """The result of a batch of one; a generator of its pieces where the handler yields lists."""
    if hasattr(result, "__aiter__"):
        return _only_of_each_later(result)
    if hasattr(result, "__next__"):
        return _only_of_each(result)
    return checked(result, 1, "returned")[0]


def _only_of_each(steps: Any) -> Iterator[Any]:
    for at, step in enumerate(steps, 1):
        piece = checked(step, 1, f"yielded as list {at}")[0]
        if piece is not None:
            yield piece


async def _only_of_each_later(steps: Any) -> AsyncIterator[Any]:
    at = 0
    async for step in steps:
        at += 1
        piece = checked(step, 1, f"yielded as list {at}")[0]
        if piece is not None:
            yield piece


def checked(result: Any, count: int, how: str) -> list[Any] | tuple[Any, ...]:
    """A list with an item for each request that the handler was called with. Raises `Unserialisable`."""
    if not isinstance(result, (list, tuple)):
        raise Unserialisable(
            f"the handler of batches {how} {type(result).__qualname__}: a list with an item for each of the {count} "
            "requests is needed"
        )
    if len(result) != count:
        raise Unserialisable(
            f"the handler of batches {how} {len(result)} items for {count} requests: one for each is needed, in order"
        )
    return result
