"""Pictures are drawn here, not stored: every test says what it feeds."""

import io
import struct

import pytest
from model import handle_request
from omni import Context, Request
from PIL import Image


def draw(mode, size, kind, **options):
    out = io.BytesIO()
    Image.new(mode, size).save(out, kind, **options)
    return out.getvalue()


def ask(body, size=None):
    headers = {} if size is None else {"x-thumbnail-size": size}
    return handle_request(Request(body=body, headers=headers), Context.inactive())


def size_of(answer):
    assert answer.media_type == "image/png"
    picture = Image.open(io.BytesIO(answer.body))
    assert picture.format == "PNG"
    return picture.size


@pytest.mark.parametrize(
    "mode, kind",
    [("RGB", "PNG"), ("RGBA", "PNG"), ("1", "PNG"), ("P", "GIF"), ("L", "JPEG"), ("CMYK", "JPEG"), ("RGB", "WEBP")],
)
def test_keeps_the_proportions(mode, kind):
    assert size_of(ask(draw(mode, (600, 300), kind))) == (128, 64)


def test_takes_the_size_from_the_header():
    assert size_of(ask(draw("RGB", (600, 300), "PNG"), "32")) == (32, 16)


def test_never_enlarges():
    assert size_of(ask(draw("RGB", (5, 7), "PNG"), "1024")) == (5, 7)


def test_follows_the_orientation_of_the_camera():
    exif = Image.Exif()
    exif[0x0112] = 6
    assert size_of(ask(draw("RGB", (600, 300), "JPEG", exif=exif))) == (64, 128)


@pytest.mark.parametrize("size", ["0", "-1", "1025", "12.5", "big", "", "١٢"])
def test_a_wrong_size_is_refused(size):
    assert ask(draw("RGB", (8, 8), "PNG"), size).status == 400


def huge_bmp():
    """The head of a bitmap that claims 60,000 x 60,000 pixels, and no pixels."""
    return (
        b"BM"
        + struct.pack("<IHHI", 54, 0, 0, 54)
        + struct.pack("<IiiHHIIiiII", 40, 60000, 60000, 1, 24, 0, 0, 0, 0, 0, 0)
    )


@pytest.mark.parametrize(
    "body",
    [b"", b"not an image", draw("RGB", (600, 300), "PNG")[:200], draw("RGB", (64, 64), "JPEG")[:300], huge_bmp()],
    ids=["empty", "text", "cut PNG", "cut JPEG", "too many pixels"],
)
def test_a_body_that_is_not_an_image_is_refused(body):
    answer = ask(body)
    assert answer.status == 400
