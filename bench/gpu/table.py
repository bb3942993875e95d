"""Table of figures, each beside its goal."""

from dataclasses import dataclass

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True)
class Row:
    """A figure; `reached` is `None` where there is no goal."""

    what: str
    figure: str
    goal: str = ""
    reached: bool | None = None


def rate(size: int, seconds: float) -> str:
    """Bytes moved in a time."""
    return f"{size / seconds / 1e9:.1f} GB/s" if seconds > 0 else "no time"


def show(rows: list[Row]) -> None:
    """Prints rows as they come."""
    words = {None: "", True: "reached", False: "NOT REACHED"}
    for row in rows:
        print(f"{row.what:<58} {row.figure:>26}  {row.goal:<26} {words[row.reached]}".rstrip(), flush=True)
