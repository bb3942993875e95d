"""Forms with files: `multipart/form-data` (RFC 7578)."""

from __future__ import annotations

import re
from email.message import Message
from typing import NamedTuple

from omni._run import refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_FIELDS = 64
_QUOTED = re.compile(r'%22|\\"')


class File(NamedTuple):
    """A file of a form."""

    content: bytes
    name: str | None
    media_type: str | None


def read(body: bytes, media_type: str) -> tuple[list[tuple[str, str]], dict[str, File]]:
    """The fields of a form in their order, and its files by the names of their fields. Raises `Refused`."""
    head = Message()
    head["content-type"] = media_type
    boundary = head.get_param("boundary")
    if head.get_content_type() != "multipart/form-data" or not isinstance(boundary, str) or not boundary:
        message = "the request's body is not a form: its `content-type` has to be `multipart/form-data`"
        raise refusal.invalid(None, message)
    if sum(name.lower() == "boundary" for name, _ in head.get_params(())) > 1:
        raise refusal.invalid(None, "the request's body is not a form: its `content-type` names several boundaries")
    fields: list[tuple[str, str]] = []
    files: dict[str, File] = {}
    for part in _parts(body, boundary.encode("latin-1", "replace")):
        name, file, content = _part(part)
        if len(fields) + len(files) == _MOST_FIELDS:
            raise refusal.invalid(None, f"the form has more than {_MOST_FIELDS} fields")
        if file is not None:
            if name in files:
                raise refusal.invalid(name, f"`{name}` appears twice")
            files[name] = file
            continue
        try:
            fields.append((name, content.decode()))
        except UnicodeDecodeError:
            raise refusal.invalid(name, f"`{name}` is not UTF-8 text") from None
    return fields, files


def _parts(body: bytes, boundary: bytes) -> Iterator[bytes]:
    broken = refusal.invalid(None, "the form is broken: its boundary is not where it has to be")
    delimiter = b"\r\n--" + boundary
    at = 0 if body.startswith(delimiter[2:]) else body.find(delimiter) + 2
    if at == 1:
        raise broken
    at += len(delimiter) - 2
    while not body.startswith(b"--", at):
        begin = body.find(b"\r\n", at)
        end = body.find(delimiter, at)
        if begin < 0 or end < 0:
            raise broken
        yield body[begin + 2 : end]
        at = end + len(delimiter)


def _part(part: bytes) -> tuple[str, File | None, bytes]:
    """Name, the file if it is one, and content."""
    head, end, content = part.partition(b"\r\n\r\n")
    headers = {}
    for line in head.decode("utf-8", "replace").split("\r\n") if end else ():
        header, _, value = line.partition(":")
        headers[header.strip().lower()] = value.strip()
    told = dict(re.findall(r'([\w*]+)="((?:[^"\\]|\\.)*)"', headers.get("content-disposition", "")))
    if "name" not in told:
        raise refusal.invalid(None, "the form is broken: a field has no name")
    name, filename = (_QUOTED.sub('"', told[key]) if key in told else None for key in ("name", "filename"))
    is_file = filename is not None or "filename*" in told or name == "file"
    return name or "", File(content, filename, headers.get("content-type")) if is_file else None, content
