"""JSON as it crosses the wire: strict in both directions. Used by requests, answers and the engine's control messages.

`NaN` and `Infinity` are not JSON: they are refused when a body is read and when a result is written. The encoder and
the decoder are built once: `json.dumps(..., separators=...)` would build one for each call, and `JSONEncoder.encode`
its inner one, which takes almost as long as a small answer. What contains itself ends at the depth that Python allows.
"""

from __future__ import annotations

import json
import re

from omni._plain import differ, plain, rebuilt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Union

    Buffer = Union[bytes, bytearray, memoryview]


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


def _encoder() -> Callable[[object], str]:
    """The inner encoder of a `JSONEncoder`, once for all calls; the outer one where a Python has it not, or another."""
    outer = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=plain)
    try:
        pieces = json.encoder.c_make_encoder(  # type: ignore[attr-defined]
            None, plain, json.encoder.encode_basestring, None, ":", ",", False, False, False
        )
        if "".join(pieces({"\u00e9": [1.5]}, 0)) == outer.encode({"\u00e9": [1.5]}):
            return lambda value: "".join(pieces(value, 0))
    except (AttributeError, TypeError):
        pass
    return outer.encode


encode_text = _encoder()
_after_digit = re.compile(r'":(?<=[0-9]":)').search
"""Ends of keys that may have been numbers."""
_decoder = json.JSONDecoder(parse_constant=_refuse)


def _may_have_equal_keys(text: str) -> bool:
    """True if some keys are not texts: as the encoder writes them, they may equal others."""
    return '"true":' in text or '"null":' in text or '"false":' in text or _after_digit(text) is not None


def encode(value: object, place: str = "result") -> bytes:
    """`value` as UTF-8 JSON. Raises `TypeError` or `ValueError`, which name the place in it, or `RecursionError`."""
    try:
        text = encode_text(value)
        if not _may_have_equal_keys(text) or differ(value):
            return text.encode()
    except RecursionError:
        raise
    except Exception:
        pass
    return encode_text(rebuilt(value, place)).encode()


def decode(data: Buffer) -> Any:
    """The value of UTF-8 JSON, with a byte order mark before it or without. Raises `ValueError` or `RecursionError`."""
    text = str(data, "utf-8")
    if text.startswith("\ufeff"):  # as PowerShell, Excel and Java write it; RFC 8259 lets a reader ignore it
        text = text[1:]
    try:
        value, end = _decoder.raw_decode(text)
        if end == len(text):
            return value
    except ValueError:
        pass  # perhaps only white space in front: let the full decoder say what is wrong
    return _decoder.decode(text)
