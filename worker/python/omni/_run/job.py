"""Requests that were read, on their way to the main thread, which answers them."""

from __future__ import annotations

from omni import _json
from omni.request import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from omni._run.answer import Answer
    from omni._run.handling import Handling

    class Job(Protocol):
        """A request of any API."""

        head: Head

        def answer(self, calls: Handling, client: Answer) -> None:
            """Answers the request, in the main thread."""


class Head:
    """All of a client's request that is not its body."""

    def __init__(self, id: str, headers: list[tuple[str, str]], session: str | None, deadline: float) -> None:
        self.id = id
        self.headers = headers
        self.session = session
        self.deadline = deadline

    @property
    def id_letters(self) -> str:
        """The id without other characters than letters and digits, of which ids of answers are made."""
        return "".join(char for char in self.id if char.isascii() and char.isalnum())

    def request(
        self,
        body: Any,
        kind: str | None = None,
        session: str | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> Request:
        """A request as the handler gets it. `body`: bytes, or a JSON value."""
        return Request(
            body=body if isinstance(body, bytes) else _json.encode(body),
            headers=self.headers,
            id=self.id,
            session=self.session if session is None else session,
            deadline=self.deadline,
            kind=kind,
            parameters=parameters,
        )
