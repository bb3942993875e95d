"""Text generation: what a handler with that annotation gets, and the chunks of its answer."""

from __future__ import annotations

import json

import pytest
from peer import BYTES, CHUNK, END, ERROR, EVENT, HANDLER, RESPONSE, STREAM, TEXT, UNSERIALISABLE

from omni import Finish, ResponseFormat, Sampling, TextGeneration, errors

DEF = """
from omni import *
import omni
def handle_request(request: TextGeneration, context):
    {}
"""
ASYNC = DEF.replace("def handle", "async def handle")


def chunks(link, number, body=None, **head):
    """Flags and payload of each chunk of a generation's answer, or of its whole text."""
    link.ask(number, {"prompt": "moo"} if body is None else body, kind="text-generation", **head)
    frames = link.gather(number)[number]
    if frames[0].kind == RESPONSE:
        assert len(frames) == 1 and frames[0].flags == TEXT and frames[0].code == 200, frames
        return [(TEXT, frames[0].payload)]
    assert (frames[0].kind, frames[0].flags) == (STREAM, EVENT), frames
    assert frames[-1].kind == END, frames
    assert all(got.kind == CHUNK for got in frames[1:-1])
    return [(got.flags, got.json if got.flags == EVENT else got.payload) for got in frames[1:-1]]


def failure(link, number, body=None, **head):
    """The last frame of a generation that fails."""
    link.ask(number, {"prompt": "moo"} if body is None else body, **{"kind": "text-generation", **head})
    last = link.gather(number)[number][-1]
    assert last.kind == ERROR, last
    return last


@pytest.mark.parametrize("code", [DEF, ASYNC])
def test_pieces_of_every_type(serve, code):
    pieces = """
    yield Reasoning("because")
    yield request.prompt
    yield b"\\xf0\\x9f"
    yield Token("ä", 7, -0.5, [("a", -0.25), ("b", float("-inf"))])
    yield Token(b"\\xf0\\x9f", 8)
    yield ToolCall("f", {"a": 1})
    yield ToolCall("g", '{"b": 2}', id="c1")
    yield Finish("tool_calls", usage=Usage(3, 4, cached_tokens=1))
"""
    _, link = serve(code.format(pieces.strip()))
    assert chunks(link, 1) == [
        (EVENT, {"type": "reasoning", "text": "because"}),
        (TEXT, b"moo"),
        (BYTES, b"\xf0\x9f"),
        (
            EVENT,
            {
                "type": "token",
                "text": "ä",
                "id": 7,
                "logprob": -0.5,
                "top": [{"text": "a", "logprob": -0.25}, {"text": "b", "logprob": -9999.0}],
            },
        ),
        (EVENT, {"type": "token", "text": "\ufffd", "bytes": [0xF0, 0x9F], "id": 8}),
        (EVENT, {"type": "tool-call", "name": "f", "arguments": '{"a":1}'}),
        (EVENT, {"type": "tool-call", "name": "g", "arguments": '{"b": 2}', "id": "c1"}),
        (
            EVENT,
            {
                "type": "finish",
                "reason": "tool-calls",
                "usage": {"prompt_tokens": 3, "completion_tokens": 4, "cached_tokens": 1, "reasoning_tokens": 0},
            },
        ),
    ]


@pytest.mark.parametrize("code", [DEF, ASYNC])
@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("'moo'", [(TEXT, b"moo")]),
        ("''", [(TEXT, b"")]),
        ("b'moo'", [(BYTES, b"moo")]),
        ("iter(['a', 'b'])", [(TEXT, b"a"), (TEXT, b"b")]),
        ("iter([])", []),
        ("Completion('moo', finish=Finish('stop'))", [(TEXT, b"moo"), (EVENT, {"type": "finish", "reason": "stop"})]),
        ("Completion(tokens=[Token('m', 1)])", [(EVENT, {"type": "token", "text": "m", "id": 1})]),
        (
            "Completion('x', 'why', [ToolCall('f')])",
            [
                (EVENT, {"type": "reasoning", "text": "why"}),
                (TEXT, b"x"),
                (EVENT, {"type": "tool-call", "name": "f", "arguments": "{}"}),
            ],
        ),
    ],
)
def test_whole_answers_come_in_the_same_form(serve, code, result, expected):
    _, link = serve(code.format(f"return {result}"))
    assert chunks(link, 1) == expected


@pytest.mark.parametrize("code", [DEF, ASYNC])
def test_long_text_needs_no_parts(serve, code):
    _, link = serve(code.format("return 'ä' * 150_000"))
    link.ask(1, {"prompt": ""}, kind="text-generation")
    data = b"".join(got.payload for got in link.gather(1)[1] if got.kind == CHUNK)
    assert data.decode() == "ä" * 150_000


@pytest.mark.parametrize(
    "result", ["text", "iter([text])", "Completion(text)", "Completion('ä', tokens=[Token(text)])"]
)
def test_a_text_that_encodes_itself_is_sent_as_utf_8(serve, result):
    code = (
        DEF
        + """
class Own(str):
    def encode(self, *how):
        return b"\\xff"
text = Own("ä")
"""
    )
    _, link = serve(code.format(f"return {result}"))
    [(_, got)] = chunks(link, 1)
    assert got == "ä".encode() or got == {"type": "token", "text": "ä"}


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        ("{'response': 'moo'}", "a text generation returned dict"),
        ("['moo']", "a text generation returned list"),
        ("None", "a text generation returned None"),
        ("Response('moo')", "a Response is no answer here"),
        ("iter([1])", "piece 1 of the stream: pieces of generated text are str, bytes, Token"),
        ("iter([Completion('a')])", "a Completion is a whole answer"),
        ("iter(['a', Finish(), 'b'])", "piece 3 of the stream: str comes after the Finish"),
        ("iter([Finish(), Finish()])", "Finish comes after the Finish"),
        ("iter([Finish('done')])", "the reason of a Finish is one of stop, length"),
        ("iter([Finish('stop', usage={'prompt_tokens': 1})])", "usage is a Usage, not dict"),
        ("iter([Finish(usage=Usage(-1))])", "`prompt_tokens` of a Usage has to be from 0 to 9007199254740992"),
        ("iter([Finish(usage=Usage(10**30, 5))])", "`prompt_tokens` of a Usage has to be from 0 to"),
        ("iter([Finish(usage=Usage(5, -(10**5000)))])", "`completion_tokens` of a Usage has to be from 0 to"),
        ("iter([Finish(usage=Usage('5'))])", "`prompt_tokens` of a Usage is a number from 0 to"),
        ("iter([Token(5)])", "the text of a Token is str or bytes, not int"),
        ("iter([Token('a', 'b')])", "the id of a Token is a number from 0 to 4294967295, not 'b'"),
        ("iter([Token('a', 2**32)])", "the id of a Token has to be from 0 to 4294967295"),
        ("iter([Token('a', 1, float('nan'))])", "nan is no log probability"),
        ("iter([Token('a', top=['ab', 'cd', 5])])", "`top` of a Token is pairs"),
        ("iter([Token('a', top=[('a', -1)] * 200)])", "`top` of a Token has 200 tokens"),
        ("iter([ToolCall('', {})])", "the name of a ToolCall"),
        ("iter([ToolCall('f', [1])])", "the arguments of a ToolCall are a dict or JSON text"),
        ("iter([ToolCall('f', {'a': float('nan')})])", "cannot be written as JSON: arguments"),
        ("iter([Reasoning(b'x')])", "the text of a Reasoning is str"),
        ("iter(['\\ud800'])", "cannot be written as UTF-8"),
        ("Completion('ab', tokens=[Token('a')])", "not that of its tokens"),
        ("Completion(b'x')", "the text of a Completion is str, not bytes"),
        ("Completion(None, tool_calls=[ToolCall('f')])", "the text of a Completion is str, not None"),
        ("Completion('x', b'why')", "the reasoning of a Completion is str, not bytes"),
        ("Completion('x', finish='length')", "`finish` of a Completion is a Finish, not str"),
        ("Completion('x', tool_calls=['junk'])", "`tool_calls[0]` of a Completion is a ToolCall, not str"),
        (
            "Completion('x', tool_calls=[ToolCall('f'), Finish('length')])",
            "`tool_calls[1]` of a Completion is a ToolCall",
        ),
        ("Completion('x', tool_calls=ToolCall('f'))", "`tool_calls` of a Completion is a list, not ToolCall"),
        ("Completion(tokens=['x'])", "`tokens[0]` of a Completion is a Token, not str"),
        ("Completion('x', tokens=[Token(5)])", "the text of a Token is str or bytes, not int"),
    ],
)
def test_results_of_other_types_are_reported(serve, result, problem):
    engine, link = serve(DEF.format(f"return {result}"))
    last = failure(link, 1)
    assert (last.flags, last.code) == (UNSERIALISABLE, 500)
    assert problem in last.json["message"]
    engine.await_log(problem)
    link.check(2, own=False)


def test_errors_of_the_handler_go_to_the_client(serve):
    _, link = serve(DEF.format("return Response.error(422, 'no cow')"))
    last = failure(link, 1)
    assert (last.flags, last.code, last.json) == (HANDLER, 422, {"message": "no cow"})


def test_a_malformed_body_names_its_parameter(serve):
    _, link = serve(DEF.format("return 'moo'"))
    for at, (body, parameter) in enumerate(
        [
            ({}, "prompt"),
            ({"prompt": "a", "messages": []}, "prompt"),
            ({"prompt": 5}, "prompt"),
            ({"prompt": "a", "sampling": {"top_k": 1.5}}, "sampling.top_k"),
            ({"prompt": "a", "sampling": {"logit_bias": [1]}}, "logit_bias"),
            ({"prompt": "a", "literals": [[2, 1]]}, "literals"),
            ({"prompt": "a", "response_format": {"type": "yaml"}}, "response_format.type"),
        ]
    ):
        last = failure(link, at + 1, body)
        assert (last.flags, last.code) == (HANDLER, 400)
        assert parameter in last.json["parameter"], last.json
    assert failure(link, 20, [1]).json["message"] == "the body is a JSON object, not a list"


@pytest.mark.parametrize("code", [DEF, ASYNC])
@pytest.mark.parametrize("before", ["", "yield 'moo'"])
def test_a_conversation_that_is_too_long_has_a_class(serve, code, before):
    raises = "raise errors.ContextLengthExceeded('9 tokens, at most 8', 'messages')"
    _, link = serve(code.format(f"{raises}\n    {before}"))
    last = failure(link, 1)
    assert (last.flags, last.code) == (HANDLER, 400)
    expected = {"message": "9 tokens, at most 8", "parameter": "messages", "code": "context_length_exceeded"}
    assert last.json == expected


def test_requests_of_another_kind_are_refused(serve):
    _, link = serve(DEF.format("return 'moo'"))
    last = failure(link, 1, kind="embeddings")
    assert (last.code, "not for embeddings" in last.json["message"]) == (501, True)


@pytest.mark.parametrize(
    "annotation", ["'TextGeneration'", "omni.TextGeneration", "'omni.TextGeneration'", "generation.TextGeneration"]
)
def test_annotations_may_be_texts(serve, annotation):
    code = "import omni\nfrom omni import generation, TextGeneration\n"
    code += f"def handle_request(request: {annotation}, context): return request.prompt"
    _, link = serve(code)
    assert chunks(link, 1) == [(TEXT, b"moo")]


def test_an_annotation_for_type_checkers_only_is_known(serve):
    code = """
    from __future__ import annotations
    TYPE_CHECKING = False
    if TYPE_CHECKING:
        from omni import TextGeneration
    def handle_request(request: TextGeneration, context: Context):
        return request.prompt
    """
    _, link = serve(code)
    assert chunks(link, 1) == [(TEXT, b"moo")]


@pytest.mark.parametrize("annotation", ["Request", "dict", "'Nowhere'", "object", "list", "'list[Nowhere'", "None"])
def test_other_annotations_get_the_request(serve, annotation):
    code = f"from omni import Request\ndef handle_request(request: {annotation}, context): return request.body.json"
    _, link = serve(code)
    got = link.answer(1, {"a": 1})
    if annotation.startswith("'list") and got.kind == ERROR:
        pytest.fail(got.json["message"])
    assert (got.kind, got.json) == (RESPONSE, {"a": 1})


def test_a_callable_object_may_be_annotated(serve):
    code = """
    from omni import TextGeneration
    class Model:
        def __call__(self, request: TextGeneration, context):
            return request.prompt
    handle_request = Model()
    """
    _, link = serve(code)
    assert chunks(link, 1) == [(TEXT, b"moo")]


def test_partials_and_decorated_functions_may_be_annotated(serve):
    code = """
    import functools
    from omni import TextGeneration
    def logged(function):
        @functools.wraps(function)
        def inner(*arguments):
            return function(*arguments)
        return inner
    class Model:
        @logged
        def answer(self, words: str, request: TextGeneration, context):
            return words + request.prompt
    handle_request = functools.partial(Model().answer, "moo ")
    """
    _, link = serve(code)
    assert chunks(link, 1) == [(TEXT, b"moo moo")]


def test_all_fields_of_a_body():
    body = {
        "prompt": "<s>hiä</s>",
        "prompt_tokens": None,
        "literals": [[3, 7]],
        "messages": None,
        "tools": [{"type": "function"}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "sampling": {"max_tokens": 5, "temperature": 0, "seed": -1, "logit_bias": [[5, -100]], "ignore_eos": True},
        "stop": ["\n"],
        "response_format": {"type": "json_schema", "schema": {"type": "object"}},
        "logprobs": 2,
        "stream": True,
        "of a later release": 1,
    }
    given = TextGeneration.from_json(body)
    assert given.sampling == Sampling(max_tokens=5, temperature=0, seed=-1, logit_bias={5: -100.0}, ignore_eos=True)
    assert given.response_format == ResponseFormat("json_schema", {"type": "object"})
    assert (given.stop, given.logprobs, given.stream, given.tools) == (["\n"], 2, True, [{"type": "function"}])
    assert given.tool_choice == {"type": "function", "function": {"name": "f"}}
    assert given.prompt_parts() == [("<s>", False), ("hiä", True), ("</s>", False)]
    assert not given.cancelled


def test_sampling_may_stand_beside_the_prompt():
    given = TextGeneration.from_json({"prompt": "a", "temperature": 0.5, "stop": "x", "logit_bias": {"5": 1}})
    assert (given.sampling.temperature, given.stop, given.sampling.logit_bias) == (0.5, ["x"], {5: 1.0})
    openai = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    given = TextGeneration.from_json({"messages": [{"role": "user"}], "response_format": openai})
    assert given.response_format == ResponseFormat("json_schema", {"type": "object"})
    with pytest.raises(errors.BadRequest):
        TextGeneration.from_json({"prompt": "a", "response_format": {"type": "json_schema"}})


def test_a_body_survives_its_own_form():
    from omni.generation import to_json

    given = TextGeneration(prompt="a", literals=[(0, 1)], sampling=Sampling(top_k=3, logit_bias={1: 2.0}))
    given.response_format = ResponseFormat("json_object")
    assert TextGeneration.from_json(json.loads(json.dumps(to_json(given)))) == given


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_tokens_are_counted_by_the_model(serve, kind):
    code = f"""
    from omni import TextGeneration
    {kind} handle_request(request: TextGeneration, context):
        return "moo"
    {kind} count_tokens(given, context):
        return len(given)
    """
    _, link = serve(code)
    for at, body in enumerate([{"prompt": "moos"}, {"messages": [{}] * 4}, {"prompt_tokens": [1, 2, 3, 4]}]):
        assert link.answer(at + 1, body, kind="count-tokens").json == {"tokens": 4}
    assert chunks(link, 9) == [(TEXT, b"moo")]


def test_models_that_cannot_count_say_so(serve):
    for at, annotation in enumerate(["", ": omni.TextGeneration"]):
        _, link = serve(f"import omni\ndef handle_request(request{annotation}, context): return 'moo'")
        last = failure(link, at + 1, kind="count-tokens")
        assert (last.flags, last.code) == (HANDLER, 501)
    _, link = serve("def handle_request(r, c): ...\ndef count_tokens(text, c): return 'many'")
    assert "count_tokens returned 'many'" in failure(link, 1, kind="count-tokens").json["message"]


def test_a_finish_may_be_left_out():
    assert Finish() == Finish(None, None)
