"""MODEL_NAME: paints pictures. Here a picture is stripes in colours of the prompt; put your model in the place of
`paint`.

The node serves it at `/v1/images/generations` and `/ai/run`.
"""

import hashlib
import struct
import zlib

from omni import TextToImage, errors

SIDE = 256  # of a picture whose client names no size
LARGEST = 1024


def handle_request(request: TextToImage, context):
    width, height = request.width or SIDE, request.height or SIDE
    if max(width, height) > LARGEST:
        raise errors.BadRequest(f"pictures of this model have at most {LARGEST} pixels a side", "size")
    first = request.seed or 0
    return [png(width, height, paint(request.prompt, first + number, width, height)) for number in range(request.n)]


def paint(prompt, seed, width, height):
    """The rows of the picture: three bytes for each pixel."""
    colours = hashlib.sha256(f"{seed} {prompt}".encode()).digest()
    for row in range(height):
        at = row * 8 // height * 3
        yield colours[at : at + 3] * width


def png(width, height, rows):
    """A PNG file. With Pillow in requirements.txt, return an image of Pillow's instead."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
