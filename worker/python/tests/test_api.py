"""The package alone, as an author's tests use it: no node, no engine."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import omni
from omni import Context, Request, Response, _json, errors

PACKAGE = Path(omni.__file__).parent.parent


def test_the_first_handler_of_the_documentation():
    def handle_request(request, context):
        try:
            text = request.body.json["text"]
        except Exception as err:
            return Response.error(400, f"text is missing: {err}")
        return f"the cow says {text}"

    assert "hi" in handle_request(Request(json={"text": "hi"}), Context.inactive())
    for bad in (Request(json={}), Request(text="moo"), Request(body=b""), Request(json=[])):
        answer = handle_request(bad, Context.inactive())
        assert (answer.status, answer.kind) == (400, "error")
        assert answer.body.startswith("text is missing: ")


def test_a_request_has_one_body():
    assert Request(json=None).body.json is None
    assert Request(json=(1, "ä")).body.json == [1, "ä"]
    assert Request(body=b'\xef\xbb\xbf{"a": 1}').body.json == {"a": 1}, "a byte order mark is none of it"
    assert Request(text="ä").body.bytes == "ä".encode()
    assert Request(body=bytearray(b"\xff")).body.bytes == b"\xff"
    with pytest.raises(TypeError):
        Request(json=1, text="1")
    with pytest.raises(errors.BadRequest, match="UTF-8"):
        _ = Request(body=b"\xff").body.text


def test_a_body_can_be_walked_both_ways():
    async def walk(request):
        return [piece async for piece in request.body.stream()]

    request = Request(body=b"x" * 2_500_000)
    assert [len(piece) for piece in request.body.stream()] == [1 << 20, 1 << 20, 2_500_000 - (2 << 20)]
    assert b"".join(asyncio.run(walk(request))) == request.body.bytes


def test_a_body_can_be_read_as_a_file():
    file = Request(body=b"line 1\nline 2").body.file()
    assert [file.readline(), file.read(4), file.read()] == [b"line 1\n", b"line", b" 2"]


def test_headers_ignore_case():
    request = Request(headers={"X-A": "1"}, method="PUT", session="s", deadline=5.0, id="i")
    assert (request.headers["x-a"], request.headers.get("X-a"), "X-B" in request.headers) == ("1", "1", False)
    assert (request.method, request.session, request.deadline, request.id) == ("PUT", "s", 5.0, "i")
    assert (list(request.headers), len(request.headers)) == (["x-a"], 1)


def test_an_inactive_context(capsys):
    context = Context.inactive(model="m", weights_dir="/w")
    assert (context.model, context.device, context.cancelled, context.deadline) == ("m", "cpu", False, None)
    assert context.weights_dir == Path("/w")
    cache = context.cache_dir
    (cache / "file").write_text("kept")
    assert context.cache_dir == cache
    del context
    assert not cache.exists()


def test_logging(capsys):
    context = Context.inactive(model="logs")
    context.logger.debug("not shown")
    context.logger.info("%d pages", 3)
    try:
        raise ValueError("why")
    except ValueError:
        context.logger.exception("failed")
    written = capsys.readouterr().err.splitlines()
    assert written[0] == "INFO [-] 3 pages"
    assert written[1] == "ERROR [-] failed"
    assert written[-1] == "ERROR [-] ValueError: why"
    assert all(line.startswith("ERROR [-] ") for line in written[1:])
    assert isinstance(context.logger, logging.Logger)


def test_usage_adds_up_and_is_bounded():
    context = Context.inactive()
    context.usage(tokens=1, seconds=0.5)
    context.usage(tokens=2)
    assert context.metrics == {"tokens": 3, "seconds": 0.5}
    for bad in ({"a": -1}, {"a": float("nan")}, {"a": float("inf")}, {"x" * 65: 1}, {f"u{i}": 1 for i in range(20)}):
        with pytest.raises(ValueError):
            context.usage(**bad)
    with pytest.raises((TypeError, ValueError)):
        context.usage(tokens="many")


def test_responses_refuse_what_cannot_be_sent():
    for status in (100, 199, 600, 0):
        with pytest.raises(ValueError):
            Response(status=status)
    for status in (200, 399, 600):
        with pytest.raises(ValueError):
            Response.error(status, "x")
        with pytest.raises(ValueError):
            errors.HTTPError(status, "x")
    for headers in ({"a\r\nb": "c"}, {"a": "b\nc"}):
        with pytest.raises(ValueError):
            Response(headers=headers)
    with pytest.raises(ValueError):
        Response(media_type="text/html\r\nx: y")


def test_broad_handlers_do_not_swallow_a_cancellation():
    assert not issubclass(errors.Cancelled, Exception)
    assert issubclass(errors.DeadlineExceeded, errors.Cancelled)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "", "{", "1 2", "[1,]", "'a'"])
def test_json_is_strict_when_it_is_read(value):
    with pytest.raises(errors.BadRequest):
        _ = Request(text=value).body.json


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1j, object(), {(1, 2): 3}, b"x"])
def test_json_is_strict_when_it_is_written(value):
    with pytest.raises((TypeError, ValueError)):
        _json.encode([value])


def test_json_of_what_libraries_return():
    @dataclasses.dataclass
    class Point:
        x: int
        y: object = None

    assert _json.encode(Point(1, Point(2))) == b'{"x":1,"y":{"x":2,"y":null}}'
    with pytest.raises(TypeError):
        _json.encode(Point)

    class Array:  # as numpy's scalars and arrays behave
        dtype = "float32"

        def tolist(self):
            return [1.5, 2.5]

    class Model:  # as pydantic's models behave
        model_fields = ("a",)

        def model_dump(self, mode):
            return {"a": mode}

    assert _json.encode({"v": Array(), "m": Model()}) == b'{"v":[1.5,2.5],"m":{"a":"json"}}'


def test_json_of_the_real_libraries():
    numpy = pytest.importorskip("numpy")
    pydantic = pytest.importorskip("pydantic")

    class Point(pydantic.BaseModel):
        x: int

    value = {"a": numpy.arange(3), "b": numpy.float32(0.5), "c": numpy.int64(7), "d": Point(x=1)}
    assert _json.encode(value) == b'{"a":[0,1,2],"b":0.5,"c":7,"d":{"x":1}}'


def test_importing_the_package_loads_little():
    program = "import sys, omni; print(sorted({'asyncio','logging','socket','inspect','typing'} & set(sys.modules)))"
    found = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "[]\n", found.stderr
