"""Values of many types as JSON, and where in a result lies what has no such form; headers and types of answers."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import json
import pathlib
import struct
import sys
import uuid
from typing import Any, ClassVar

import pytest
from peer import BYTES, CHUNK, END, ERROR, EVENTS, HEAD, JSON, STREAM, TEXT, UNSERIALISABLE

from omni import Response, _json
from omni._engine.answer import Stream, whole
from omni.errors import Unserialisable


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class User:
    name: str
    created: Any = None
    registry: ClassVar[dict] = {"never": object()}
    seed: dataclasses.InitVar[int] = 7
    missing: int = dataclasses.field(init=False, repr=False)


@dataclasses.dataclass
class Plain:
    count: int
    registry: ClassVar[dict] = {"never": object()}
    seed: dataclasses.InitVar[int] = 7


KEY = uuid.UUID(int=5)
WHEN = datetime.datetime(2026, 11, 5, 12, 30, tzinfo=datetime.timezone.utc)


@pytest.mark.parametrize(
    "value, written",
    [
        (WHEN, "2026-11-05T12:30:00+00:00"),
        (WHEN.date(), "2026-11-05"),
        (WHEN.time(), "12:30:00"),
        (datetime.timedelta(minutes=1.5), 90.0),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (KEY, str(KEY)),
        (decimal.Decimal("0.10"), "0.10"),
        ({3}, [3]),
        (frozenset([Colour.RED]), ["red"]),
        (collections.deque([1, 2]), [1, 2]),
        (pathlib.PurePosixPath("/a/b"), "/a/b"),
        (pathlib.Path("c"), "c"),
        (Plain(2), {"count": 2}),
        ({"deep": [Plain(2), (WHEN.date(),)]}, {"deep": [{"count": 2}, ["2026-11-05"]]}),
        ({KEY: 1, Colour.RED: 2, WHEN.date(): 3, 4: 5}, {str(KEY): 1, "red": 2, "2026-11-05": 3, "4": 5}),
    ],
)
def test_values_of_common_types_are_written(value, written):
    assert json.loads(_json.encode(value)) == written
    assert json.loads(_json.encode([{"in": value}])) == [{"in": written}]


def test_pydantic_models_are_written_wherever_they_are():
    pydantic = pytest.importorskip("pydantic")

    class Item(pydantic.BaseModel):
        when: datetime.datetime
        amount: decimal.Decimal
        score: float = 0.0

    item = Item(when=WHEN, amount="1.50")
    told = json.loads(_json.encode({"items": [Plain(item)]}))["items"][0]["count"]
    assert told == {"when": "2026-11-05T12:30:00Z", "amount": "1.50", "score": 0.0}
    with pytest.raises(TypeError, match=r'^result\["items"\]\[0\]\["score"\]: nan is not a JSON number$'):
        _json.encode({"items": [item.model_copy(update={"score": float("nan")})]})


class Raises:
    dtype = "mine"

    def tolist(self):
        raise RuntimeError("no device")


@pytest.mark.parametrize(
    "value, place",
    [
        ({"users": [0, 1, 2, Plain(object())]}, r'result["users"][3].count: a value of type builtins.object'),
        ({"a": {"b": (1, {"c": 1j})}}, r'result["a"]["b"][1]["c"]: a value of type builtins.complex'),
        ([1.0, float("-inf")], "result[1]: -inf is not a JSON number"),
        ([decimal.Decimal("NaN"), {1: b"x"}], "result[1][1]: a value of type builtins.bytes"),
        ({"text": ["ok", "half \ud83d"]}, r"""result["text"][1]: character 5 is the lone surrogate '\ud83d'"""),
        ({"\udc00": 1}, r"""result, the key "\udc00": character 0 is the lone surrogate '\udc00'"""),
        ({"a": {(1, 2): 3}}, 'result["a"]: a key of type tuple cannot be written as JSON: (1, 2)'),
        ({KEY: 1, str(KEY): 2}, f'result: two of its keys are written as "{KEY}"'),
        ({"a": [{1: "a", "1": "b"}]}, 'result["a"][0]: two of its keys are written as "1"'),
        ({True: 1, "true": 2}, 'result: two of its keys are written as "true"'),
        ({"null": 1, None: 2}, 'result: two of its keys are written as "null"'),
        ({-2.5e-7: 1, "-2.5e-07": 2}, 'result: two of its keys are written as "-2.5e-07"'),
        ([User("x")], "result[0]: the field `missing` of User has no value"),
        ({"t": Raises()}, 'result["t"]: Raises raised RuntimeError: no device'),
        (Plain({"x": {1j}}), 'result.count["x"][0]: a value of type builtins.complex'),
    ],
)
def test_a_value_that_cannot_be_written_is_named_with_its_place(value, place):
    with pytest.raises((TypeError, ValueError)) as caught:
        _json.encode(value)
    assert str(caught.value).startswith(place)
    with pytest.raises(Unserialisable) as caught:
        whole(1, value)
    assert f"cannot be written as JSON: {place}" in str(caught.value)


def test_the_place_is_in_the_models_log(serve):
    engine, link = serve(
        """
        def handle_request(request, context):
            if request.body.bytes == b"stream":
                return ({"n": [n if n < 2 else 1j]} for n in range(9))
            return {"users": [{"created": complex(0, 1)}]}
        """
    )
    got = link.answer(1)
    assert (got.kind, got.flags, got.code) == (ERROR, UNSERIALISABLE, 500)
    engine.await_log('ERROR [r1] the result cannot be sent: the result cannot be written as JSON: result["users"][0]')
    link.ask(2, b"stream")
    assert link.read_until_last(2)[-1].flags == UNSERIALISABLE
    engine.await_log('the piece cannot be written as JSON: piece["n"][0]: a value of type builtins.complex')


def head_of(frame: bytes) -> tuple[int, int, dict, bytes]:
    """Kind, flags, head and rest of a frame that has a head."""
    _, kind, flags, status, _ = struct.unpack_from("<IBBHQ", frame)
    payload = frame[16:]
    if kind == STREAM:
        return flags, status, json.loads(payload or b"{}"), b""
    assert flags & HEAD
    (length,) = struct.unpack_from("<I", payload)
    return flags & ~HEAD, status, json.loads(payload[4 : 4 + length]), payload[4 + length :]


@pytest.mark.parametrize("name", ["Content-Type", "content-type"])
def test_a_type_among_the_headers_is_the_answers_type(name):
    image = head_of(whole(1, Response(b"png", headers={name: "image/png"})))
    assert image == (BYTES, 200, {"media_type": "image/png"}, b"png")
    both = Response(b"png", headers={name: "image/png", "x-a": "b"}, media_type="image/png")
    assert head_of(whole(1, both))[2] == {"media_type": "image/png", "headers": [["x-a", "b"]]}
    stream = whole(1, Response.stream(iter([b"png"]), headers={name: "image/png"}))
    assert stream.encode(b"png")[0] == BYTES
    assert head_of(stream.opening())[:3] == (BYTES, 200, {"media_type": "image/png"})


def test_json_of_a_type_of_its_own_has_no_envelope():
    problem = Response({"title": "no"}, 422, media_type="application/problem+json")
    flags, status, head, rest = head_of(whole(1, problem))
    assert (flags, status, head) == (BYTES, 422, {"media_type": "application/problem+json"})
    assert json.loads(rest) == {"title": "no"}
    flags, _, head, rest = head_of(whole(1, Response([1], headers={"content-type": "application/json; charset=utf-8"})))
    assert (flags, head, rest) == (JSON, {"media_type": "application/json; charset=utf-8"}, b"[1]")


@pytest.mark.parametrize(
    "headers, media_type, problem",
    [
        ({f"x-{n}": "v" for n in range(65)}, None, "65 headers, at most 64"),
        ({"bad name": "v"}, None, "'bad name' is not a name of a header"),
        ({"": "v"}, None, "'' is not a name"),
        ({"x-ä": "v"}, None, "is not a name of a header"),
        ({"x-a": "one\r\ntwo"}, None, "'x-a' cannot hold a line break"),
        ({"x-a": "\ud800"}, None, "'x-a' cannot be written as UTF-8"),
        ({"Content-Length": "7"}, None, "'Content-Length' is set by the node"),
        ({"x-request-id": "mine"}, None, "is set by the node"),
        ({"X-Omni-Retry": "other-node"}, None, "is set by the node"),
        ({"x-should-retry": "true"}, None, "is set by the node"),
        ({"Set-Cookie": "a=b"}, None, "'Set-Cookie' would hold for more than this answer"),
        ({"x-accel-redirect": "/etc"}, None, "would hold for more"),
        ({"content-type": "image/png"}, "image/gif", "two types: 'image/gif' and, among its headers, 'image/png'"),
        ({}, "text/plain\nx: y", "cannot hold a line break"),
    ],
)
def test_headers_that_cannot_be_sent_are_errors(headers, media_type, problem):
    with pytest.raises(ValueError) as caught:
        Response("x", headers=headers, media_type=media_type)
    assert problem in str(caught.value)
    late = Response("x")
    late.headers, late.media_type = list(headers.items()), media_type
    with pytest.raises(Unserialisable) as caught:
        whole(1, late)
    assert problem in str(caught.value)


def test_sixty_four_headers_are_sent():
    headers = {f"x-h-{n}": "vä" for n in range(64)}
    assert head_of(whole(1, Response("x", headers=headers)))[2] == {"headers": [list(pair) for pair in headers.items()]}


def test_bytes_in_a_stream_of_events_are_the_authors_own_events(serve):
    _, link = serve(
        """
        from omni import Response
        PIECES = [b": ping\\n\\n", b"event: tick\\nid: 7\\ndata: 1\\n\\n"]
        PIECES += ["text", {"n": 1}, bytearray(b"retry: 5\\n\\n")]
        def handle_request(request, context):
            return Response.stream(iter(PIECES), media_type="text/event-stream; charset=utf-8")
        """
    )
    link.ask(1)
    first, *rest = link.read_until_last(1)
    assert (first.kind, first.flags) == (STREAM, EVENTS)
    assert [(got.kind, got.flags, got.payload) for got in rest] == [
        (CHUNK, BYTES, b": ping\n\n"),
        (CHUNK, BYTES, b"event: tick\nid: 7\ndata: 1\n\n"),
        (CHUNK, TEXT, b"text"),
        (CHUNK, JSON, b'{"n":1}'),
        (CHUNK, BYTES, b"retry: 5\n\n"),
        (END, 0, b""),
    ]


def test_bytes_after_text_need_a_type():
    stream = whole(1, iter(["text", b"bytes"]))
    assert isinstance(stream, Stream)
    assert stream.encode("text")[0] == TEXT
    with pytest.raises(Unserialisable, match="cannot go on with bytes"):
        stream.encode(b"bytes")


def test_no_type_costs_the_import_of_its_module():
    """An engine that has answered with plain values has imported none of the modules whose types it knows."""
    import subprocess

    code = "import sys; from omni import _json; _json.encode({'a': 1}); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"datetime", "decimal", "uuid", "pathlib", "dataclasses"} & set(loaded.split())
