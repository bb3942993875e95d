"""Images and audio in requests and answers: types of files, data URLs, Pillow.

Pillow is no dependency: it is imported where an image is asked for.
"""

from __future__ import annotations

import base64
import binascii
import io
from importlib import import_module
from urllib.parse import unquote_to_bytes

from omni.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_AUDIO = {
    "aac": "audio/aac",
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "ogg": "audio/ogg",
    "opus": "audio/ogg",
    "pcm": "audio/pcm",
    "wav": "audio/wav",
}
"""Media types of audio formats, by their names in the OpenAI API."""
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"\xff\xf3", "audio/mpeg"),
    (b"\xff\xf1", "audio/aac"),
)
_RIFF = {b"WAVE": "audio/wav", b"WEBP": "image/webp"}


def type_of(data: bytes) -> str | None:
    """The media type of an image's or sound's bytes; None where it is not known."""
    if data[:4] == b"RIFF":
        return _RIFF.get(bytes(data[8:12]))
    return next((kind for magic, kind in _MAGIC if data.startswith(magic)), None)


def audio_type(format: str | None) -> str | None:
    """The media type of an audio format, such as `"mp3"`; None where it is not known."""
    return _AUDIO.get((format or "").lower())


def decode_data_url(url: str) -> tuple[str, bytes]:
    """Media type and bytes of a data URL, as images come in the messages of a chat. Raises `BadRequest`."""
    head, comma, data = url.partition(",")
    if not comma or not head.lower().startswith("data:"):
        raise BadRequest("not a data URL: `data:image/png;base64,…` is needed")
    media_type, *parameters = head[5:].split(";")
    if not parameters or parameters[-1].strip().lower() != "base64":
        return media_type or "text/plain", unquote_to_bytes(data)
    return media_type or "text/plain", decode_base64(unquote_to_bytes(data).decode("ascii", "replace"))


def decode_base64(text: str) -> bytes:
    """Bytes of base64, with line breaks or without. Raises `BadRequest`."""
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest("not base64") from None


def file_of(value: Any, parameter: str) -> bytes:
    """A file within a JSON value: a data URL, base64, or a list of byte values as Workers AI takes it. Raises
    `BadRequest`."""
    try:
        if isinstance(value, str):
            return decode_data_url(value)[1] if value[:5].lower() == "data:" else decode_base64(value)
        if isinstance(value, list):
            return bytes(value)
    except (BadRequest, TypeError, ValueError):
        pass
    raise BadRequest(f"`{parameter}` is a file: a data URL, base64, or a list of byte values", parameter)


def open_image(data: bytes) -> Any:
    """A Pillow image. Raises `BadRequest` where the bytes are no image that Pillow reads."""
    pillow: Any = import_module("PIL.Image")
    try:
        image = pillow.open(io.BytesIO(data))
        image.load()
    except (OSError, ValueError, SyntaxError) as err:  # one of Pillow's own is an OSError
        raise BadRequest(f"not an image that can be read: {err}") from None
    return image


def is_image(value: object) -> bool:
    """True for a Pillow image."""
    return any(base.__module__ == "PIL.Image" and base.__name__ == "Image" for base in type(value).__mro__)


def image_file(image: Any, format: str | None = None) -> tuple[bytes, str]:
    """The file of an image, and its media type. `image`: a Pillow image, or the bytes of a file."""
    if isinstance(image, (bytes, bytearray, memoryview)):
        data = bytes(image)
        found = type_of(data)
        if found is None or not found.startswith("image/"):
            raise ValueError("the bytes are no PNG, JPEG, GIF or WebP file")
        return data, found
    if not is_image(image):
        raise ValueError(f"an image is bytes of a file or a Pillow image, not {type(image).__qualname__}")
    format = (format or "PNG").upper().replace("JPG", "JPEG")
    if format == "JPEG" and image.mode not in ("L", "RGB", "CMYK"):
        image = image.convert("RGB")
    out = io.BytesIO()
    image.save(out, format)
    return out.getvalue(), f"image/{format.lower()}"
