"""Answers that cannot be sent as asked: each is an error with its reason."""

from __future__ import annotations

import struct

import pytest
from peer import BYTES, CHUNK, END, ERROR, EVENTS, HANDLER, STREAM, UNSERIALISABLE

from omni import Response, _json, errors
from omni._engine.answer import Stream, whole
from omni.errors import Unserialisable


def rest_of(frame):
    """Text of an answer behind its head."""
    payload = frame[16:]
    (length,) = struct.unpack_from("<I", payload)
    return payload[4 + length :]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"headers": {"x-a": None}}, "'x-a' has a value that is no text, but None"),
        ({"headers": {"x-a": True}}, "'x-a' has a value that is no text, but of type bool: True"),
        ({"headers": {"x-a": ["1", "2"]}}, "'x-a' has a value that is no text, but of type list: ['1', '2']"),
        ({"headers": {b"x-a": "1"}}, "a header's name is text, not of type bytes: b'x-a'"),
        ({"headers": ["ab"]}, "headers are a dict, or pairs of name and value, not 'ab'"),
        ({"headers": [("x-a", "1", "2")]}, "headers are a dict, or pairs"),
        ({"media_type": ""}, "a media type is text like 'text/plain', not ''"),
        ({"media_type": 5}, "a media type is text like 'text/plain', not of type int: 5"),
        ({"media_type": "json"}, "a media type is text like 'text/plain', not 'json'"),
        ({"headers": {"content-type": ""}}, "a media type is text like 'text/plain', not ''"),
        ({"status": "404"}, "a status is a number from 200 to 599, not '404'"),
        ({"status": None}, "a status is a number from 200 to 599, not None"),
        ({"status": True}, "a status is a number"),
        ({"status": 101}, "a status is from 200 to 599, not 101"),
    ],
)
def test_a_response_that_cannot_be_made(arguments, problem):
    with pytest.raises(ValueError) as caught:
        Response("x", **arguments)
    assert problem in str(caught.value)


def test_numbers_are_headers():
    assert Response("x", headers={"x-count": 5}).headers == [("x-count", "5")]
    late = Response("x")
    late.headers = [("x-a", None)]
    with pytest.raises(Unserialisable, match="'x-a' has a value that is no text"):
        whole(1, late)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("x\ud800", r"cannot be UTF-8: character 1 is '\ud800'"),
        (
            {"a": 1},
            "an error's message is text, not of type dict: to answer with a value, return Response(value, status=404)",
        ),
        ("x" * 4097, "4097 characters, at most 4096"),
    ],
)
def test_an_error_that_cannot_be_made(message, problem):
    with pytest.raises(ValueError) as caught:
        Response.error(404, message)
    assert problem in str(caught.value)
    with pytest.raises(ValueError, match="an error's status is a number"):
        errors.HTTPError("404", "x")


@pytest.mark.parametrize(
    ("media_type", "text", "sent"),
    [
        ("text/plain; charset=latin-1", "ä", b"\xe4"),
        ('text/plain;charset="UTF-8"', "ä", b"\xc3\xa4"),
        ("text/plain; Charset=utf-16-le", "ä", b"\xe4\0"),
        ("text/plain", "ä", b"\xc3\xa4"),
        ("application/problem+json; charset=latin-1", {"t": "ä"}, b'{"t":"\xe4"}'),
    ],
)
def test_text_is_written_in_the_charset_of_its_type(media_type, text, sent):
    assert rest_of(whole(1, Response(text, media_type=media_type))) == sent


@pytest.mark.parametrize(
    ("response", "problem"),
    [
        (Response("€", media_type="text/plain; charset=latin-1"), r"written as ISO8859-1: character 0 is '\u20ac'"),
        (Response("x", media_type="text/plain; charset=klingon"), "does not know the charset 'klingon'"),
        (Response("x", media_type="text/plain; charset=rot13"), "does not know the charset 'rot13'"),
        (Response({}, media_type="application/json; charset=latin-1"), "application/json is written as UTF-8"),
        (Response.stream([], media_type="text/event-stream; charset=latin-1"), "text/event-stream is written as UTF-8"),
        (Response({"a": 1}, status=204), "an answer with status 204 has no body"),
        (Response("x", status=304), "an answer with status 304 has no body"),
        (Response(b"x", status=205), "an answer with status 205 has no body"),
        (Response(0, status=204), "an answer with status 204 has no body"),
        (Response.stream([b"x"], status=204), "an answer with status 204 has no body"),
    ],
)
def test_a_response_that_cannot_be_sent(response, problem):
    with pytest.raises(Unserialisable) as caught:
        whole(1, response)
    assert problem in str(caught.value)


@pytest.mark.parametrize("body", [None, b"", ""])
def test_a_status_without_a_body(body):
    assert whole(1, Response(body, status=204)) == struct.pack("<IBBHQ", 0, 16, BYTES, 204, 1)


def test_values_in_a_stream_of_lines():
    stream = whole(1, Response.stream(iter([]), media_type="application/x-ndjson; charset=utf-8"))
    assert isinstance(stream, Stream)
    pieces = [{"a": 1}, [2, "ä"], None, "text as it is\n", b"bytes\n"]
    sent = [bytes(stream.encode(piece)[1]) for piece in pieces]
    assert b"".join(sent).decode() == '{"a":1}\n[2,"ä"]\nnull\ntext as it is\nbytes\n'
    with pytest.raises(Unserialisable, match=r'piece 6 of the stream: the piece cannot be .* piece\["a"\]: '):
        stream.encode({"a": 1j})


class Own(str):
    """Text that encodes itself in another way."""

    __slots__ = ()

    def encode(self, *how):
        return b"\xff"


@pytest.mark.parametrize("media_type", [None, "text/event-stream", "text/plain", "text/plain; charset=latin-1"])
def test_text_is_written_in_the_charset_whatever_its_class(media_type):
    charset = "latin-1" if "latin" in (media_type or "") else "utf-8"
    stream = whole(1, Response.stream(iter([]), media_type=media_type))
    assert isinstance(stream, Stream)
    assert bytes(stream.encode(Own("ä"))[1]) == "ä".encode(charset)
    frame = whole(1, Response(Own("ä"), media_type=media_type))
    assert isinstance(frame, bytes) and "ä".encode(charset) in frame


def test_pieces_of_a_text_have_one_byte_order_mark():
    stream = whole(1, Response.stream(iter([]), media_type="text/plain; charset=utf-16"))
    assert isinstance(stream, Stream)
    assert b"".join(bytes(stream.encode(piece)[1]) for piece in "ab").decode("utf-16") == "ab"


@pytest.mark.parametrize(
    ("media_type", "pieces", "problem"),
    [
        (None, [b"a", {"b": 1}], "piece 2 of the stream: a stream that began with bytes went on with dict"),
        (
            None,
            ["a", "b", b"c"],
            "piece 3 of the stream: a stream that began with text or JSON cannot go on with bytes",
        ),
        (None, ["a", "\ud800"], "piece 2 of the stream: the text cannot be written as UTF-8"),
        (
            "text/csv",
            ["a", {"b": 1}],
            "piece 2 of the stream: dict in a stream of type 'text/csv', whose pieces are bytes",
        ),
        ("text/csv; charset=ascii", ["a", "ä"], "piece 2 of the stream: the text cannot be written as ASCII"),
    ],
)
def test_a_piece_that_cannot_be_sent_is_named(media_type, pieces, problem):
    stream = whole(1, Response.stream(iter([]), media_type=media_type))
    assert isinstance(stream, Stream)
    *good, bad = pieces
    for piece in good:
        stream.encode(piece)
    with pytest.raises(Unserialisable) as caught:
        stream.encode(bad)
    assert problem in str(caught.value)


@pytest.mark.parametrize(("define", "concurrency"), [("def", 1), ("def", 4), ("async def", 4)])
def test_errors_for_the_client_and_for_the_log(serve, define, concurrency):
    engine, link = serve(
        f"""
        from omni import Response, errors
        {define} handle_request(request, context):
            what = request.body.text
            if what == "empty":
                return Response.stream(iter([b"", b""]), media_type="text/event-stream")
            if what == "own":
                return Response.stream(iter([b"", b": ping\\n\\n"]), media_type="text/event-stream")
            if what == "keys":
                return {{"users": {{1: "a", "1": "b"}}}}
            if what == "escaped":
                raise errors.HTTPError(404, "no \\ud800")
            return Response.stream(iter([b"a" * 10, {{"b": 1}}]))
        """,
        concurrency,
    )
    link.ask(1, b"empty")
    told = [(got.kind, got.flags, got.payload) for got in link.read_until_last(1)]
    assert [one[:2] for one in told] == [(STREAM, EVENTS), (CHUNK, BYTES), (END, 0)]
    assert told[1][2] == b""
    link.ask(2, b"own")
    assert [got.payload for got in link.read_until_last(2) if got.kind == CHUNK] == [b"", b": ping\n\n"]
    got = link.answer(3, b"keys")
    assert (got.kind, got.flags) == (ERROR, UNSERIALISABLE)
    engine.await_log(
        '[r3] the result cannot be sent: the result cannot be written as JSON: result["users"]: two of its'
    )
    got = link.answer(4, b"escaped")
    assert (got.kind, got.flags, got.code, got.json) == (ERROR, HANDLER, 404, {"message": "no \\ud800"})
    link.ask(5, b"late")
    assert [got.kind for got in link.read_until_last(5)] == [STREAM, CHUNK, ERROR]
    engine.await_log("[r5] the result cannot be sent: piece 2 of the stream: a stream that began with bytes")


@pytest.mark.parametrize("value", [{"1": 2}, {"true": [], "x": None}, ['"1":', {"a": '{"1":2}'}], {"9": {"-1.5e3": 1}}])
def test_keys_that_look_like_numbers_are_written(value):
    assert _json.decode(_json.encode(value)) == value


def test_keys_that_are_no_text_are_written():
    assert _json.encode({1: 2, None: 3, 1.5: {True: 4}}) == b'{"1":2,"null":3,"1.5":{"true":4}}'
