"""Rules for generated text in the local run: characters, stop strings, limits, ends."""

from __future__ import annotations

import random

import pytest

from omni import Finish, Reasoning, Token, ToolCall, Usage
from omni._run.guard import Guard, Limits, StopMatcher


def guarded(given, /, **limits):
    guard = Guard(Limits(**limits))
    deltas = list(guard.deltas(given))
    return "".join(delta.text for delta in deltas), guard, deltas


def test_the_text_does_not_depend_on_the_pieces():
    chance = random.Random(7)
    for _ in range(3000):
        text = "".join(chance.choice("abäé ") for _ in range(chance.randrange(12)))
        stops = ["".join(chance.choice("abä") for _ in range(chance.randrange(1, 4))) for _ in range(2)]
        whole, _, _ = guarded([text], stop=stops)
        data, pieces = text.encode(), []
        while data:
            size = chance.randrange(1, 4)
            pieces.append(data[:size])
            data = data[size:]
        split, guard, _ = guarded(pieces, stop=stops)
        assert split == whole and text.startswith(whole)
        ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
        assert (len(whole) < len(text)) == bool(ends)
        assert guard.reason == "stop"


def test_at_most_a_stop_strings_length_is_held_back():
    matcher = StopMatcher(["STOP"])
    assert [matcher.push(piece) for piece in ("x", "ST", "O", "x", "S")] == ["x", "", "", "STOx", ""]
    assert matcher.rest() == "S"


def test_the_handler_is_not_walked_beyond_the_end():
    def handler():
        yield "a STOP"
        raise AssertionError("walked on")

    assert guarded(handler(), stop=["STOP"])[0] == "a "
    assert guarded(handler(), pieces=1)[1].reason == "length"


def test_ends_and_usage():
    text, guard, _ = guarded(["a", "b", Finish("content-filter", Usage(5, 6))], prompt_tokens=3)
    assert (text, guard.reason, guard.usage) == ("ab", "content_filter", Usage(5, 6))
    _, guard, _ = guarded(["a", "b"], prompt_tokens=3)
    assert (guard.reason, guard.usage) == ("stop", Usage(3, 2))
    _, guard, deltas = guarded([Reasoning("r"), ToolCall("f", "{}", "7"), ToolCall("g", "{}")], calls=1)
    assert guard.reason == "tool_calls" and [delta.call.id for delta in deltas if delta.call] == ["7"]
    assert deltas[0].reasoning == "r"


def test_a_broken_character_is_replaced():
    assert guarded([b"a\xc3", b"b\xe2\x82"])[0] == "a\ufffdb\ufffd"


@pytest.mark.parametrize("stop, left", [([], ["a", " b"]), ([" b"], ["a"])])
def test_tokens_leave_with_their_text(stop, left):
    _, _, deltas = guarded([Token("a", 1), Token(" b", 2)], stop=stop)
    assert [token.text for delta in deltas for token in delta.tokens] == left
