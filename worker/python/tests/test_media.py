"""Images and audio in requests and answers."""

from __future__ import annotations

import base64
import io

import pytest

from omni import Request, Response, decode_data_url, errors, media

PNG = b"\x89PNG\r\n\x1a\nmoo"


def test_data_urls():
    text = base64.b64encode(PNG).decode()
    assert decode_data_url(f"data:image/png;base64,{text}") == ("image/png", PNG)
    assert decode_data_url(f"DATA:image/png;charset=x;BASE64,{text[:4]}\n{text[4:]}") == ("image/png", PNG)
    assert decode_data_url("data:,a%20b") == ("text/plain", b"a b")
    for bad in ("", "moo", "https://example.org/a.png", "data:image/png;base64,###", "data:image/png;base64"):
        with pytest.raises(errors.BadRequest):
            decode_data_url(bad)


def test_files_of_bodies():
    text = base64.b64encode(PNG).decode()
    assert Request(body=PNG).body.audio() == PNG
    for value in (text, f"data:image/png;base64,{text}", list(PNG)):
        assert Request(json={"audio": value}).body.audio() == PNG
    assert Request(json={"file": text}).body.audio("file") == PNG
    for bad in (None, 5, [256], ["a"], "###"):
        with pytest.raises(errors.BadRequest) as caught:
            Request(json={"audio": bad}).body.audio()
        assert caught.value.parameter == "audio"


def test_types_of_files():
    for data, kind in [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"RIFF0000WAVE", "audio/wav"),
        (b"RIFF0000WEBP", "image/webp"),
        (b"RIFF0000AVI ", None),
        (b"ID3", "audio/mpeg"),
        (b"moo", None),
        (b"", None),
    ]:
        assert media.type_of(data) == kind
    assert (media.audio_type("MP3"), media.audio_type("tape"), media.audio_type(None)) == ("audio/mpeg", None, None)


def test_answers_with_files():
    assert Response.image(PNG).media_type == "image/png"
    assert Response.audio(b"fLaC").media_type == "audio/flac"
    answer = Response.audio(b"moo", "audio/pcm", status=201, headers={"x-a": "b"})
    assert (answer.body, answer.media_type, answer.status, answer.headers) == (b"moo", "audio/pcm", 201, [("x-a", "b")])
    for bad in (b"moo", "moo", None):
        with pytest.raises(ValueError):
            Response.image(bad)
    with pytest.raises(ValueError):
        Response.audio(b"moo")


def test_images_of_pillow():
    image_module = pytest.importorskip("PIL.Image")
    image = image_module.new("RGBA", (2, 3), (255, 0, 0, 255))
    answer = Response.image(image, "jpg")
    assert answer.media_type == "image/jpeg"
    assert Request(body=answer.body).body.image().size == (2, 3)
    assert image_module.open(io.BytesIO(Response.image(image).body)).format == "PNG"
    with pytest.raises(errors.BadRequest):
        Request(body=b"moo").body.image()
