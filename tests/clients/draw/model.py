"""Images that are easy to check: the head of a PNG file, then size and description."""

from omni import TextToImage


def handle_request(request: TextToImage, context):
    told = f"{request.width}x{request.height} {request.prompt}"
    return [b"\x89PNG\r\n\x1a\n" + told.encode()] * request.n
