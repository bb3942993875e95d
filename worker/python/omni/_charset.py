"""Text in the charset that a media type names."""

from __future__ import annotations

import codecs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

UTF_8 = "utf-8"


def named_by(media_type: str | None) -> str:
    """Python's name of the charset of a media type, UTF-8 where it names none. Raises `ValueError`."""
    for parameter in (media_type or "").split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return _known(value.strip().strip("\"'"))
    return UTF_8


def _known(charset: str) -> str:
    try:
        name = codecs.lookup(charset).name
        if isinstance("".encode(name), bytes):  # `rot13` and the like encode no text, and raise
            return name
    except (LookupError, TypeError, ValueError):
        pass
    raise ValueError(f"Python does not know the charset {charset[:40]!r}: encode the text yourself, and send bytes")


def encoder(charset: str) -> Callable[[str], bytes]:
    """An encoder for the pieces of a text in order: a byte order mark stands before the first one only."""
    encode = codecs.getincrementalencoder(charset)().encode

    def piece(text: str) -> bytes:
        try:
            return encode(text)
        except UnicodeEncodeError as err:
            raise ValueError(_cannot(err, charset)) from None

    return piece


def encoded(text: str, charset: str) -> bytes:
    """A whole text. Raises `ValueError`, which names the character."""
    try:
        return str.encode(text, charset)  # a subclass may encode in another way
    except UnicodeEncodeError as err:
        raise ValueError(_cannot(err, charset)) from None


def _cannot(error: UnicodeEncodeError, charset: str) -> str:
    found = ascii(error.object[error.start])
    return f"the text cannot be written as {charset.upper()}: character {error.start} is {found}"
