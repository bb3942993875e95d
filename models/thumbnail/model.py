"""Makes a small picture of a large one: bytes in, bytes out.

Input:  the bytes of an image (PNG, JPEG, GIF, WebP, BMP or TIFF); the header `x-thumbnail-size` is the longest
        side in pixels, 1 to 1024 (default 128)
Answer: the bytes of a PNG that keeps the proportions, never larger than the original.
"""

import io

from omni import Response
from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")
LARGEST_SIDE = 1024
# A few kilobytes can claim any number of pixels: the claim is read before a pixel is decoded.
MOST_PIXELS = 64_000_000


def handle_request(request, context):
    size = request.headers.get("x-thumbnail-size", "128")
    if not (size.isascii() and size.isdigit() and 1 <= int(size) <= LARGEST_SIDE):
        return Response.error(400, f"x-thumbnail-size must be a whole number from 1 to {LARGEST_SIDE}")
    try:
        image = Image.open(io.BytesIO(request.body.bytes), formats=FORMATS)
        if image.width * image.height > MOST_PIXELS:
            return Response.error(400, f"the image has more than {MOST_PIXELS} pixels")
        png = thumbnail(image, int(size))
    except UnidentifiedImageError:
        return Response.error(400, f"the body is not an image of a known format ({', '.join(FORMATS)})")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as err:
        return Response.error(400, f"the image cannot be read: {err}")
    return Response(png, media_type="image/png")


def thumbnail(image, size):
    # A JPEG is decoded at a fraction of its size where that is still enough: most of the time goes there.
    image.draft(None, (2 * size, 2 * size))
    image = ImageOps.exif_transpose(image)
    if image.mode not in ("RGB", "RGBA", "L", "LA"):
        image = image.convert("RGBA" if "transparency" in image.info or image.mode == "PA" else "RGB")
    image.thumbnail((size, size))
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()
