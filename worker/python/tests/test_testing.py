"""The client for tests of models: the same reading and the same checks as in an engine."""

from __future__ import annotations

import subprocess
import sys

import pytest
from local import ENVIRONMENT, manifest_is_read

from omni import (
    Completion,
    Context,
    Embeddings,
    Finish,
    Reasoning,
    Rerank,
    Response,
    ResponseFormat,
    SpeechToText,
    TextGeneration,
    TextToImage,
    TextToSpeech,
    Token,
    ToolCall,
    Transcription,
    Usage,
    errors,
)
from omni.testing import TestClient

PNG = b"\x89PNG\r\n\x1a\nmoo"


def chat(request: TextGeneration, context: Context):
    assert request.prompt is not None
    yield Reasoning("because")
    yield Token(request.prompt, 7, -0.5, [("a", -1.0)])
    yield "ä".encode()[:1]
    yield "ä".encode()[1:]
    yield ToolCall("f", {"t": request.sampling.temperature})
    yield Finish("stop", Usage(1, 2))


async def chat_later(request: TextGeneration, context: Context):
    for piece in chat(request, context):
        yield piece


@pytest.mark.parametrize("handler", [chat, chat_later])
def test_a_chat(handler):
    with TestClient(handler) as client:
        made = client.chat(prompt="moo", temperature=0.5, stop=["\n"])
    assert made == Completion(
        "mooä",
        "because",
        [ToolCall("f", '{"t":0.5}')],
        Finish("stop", Usage(1, 2)),
        [Token("moo", 7, -0.5, [("a", -1.0)])],
    )
    assert list(TestClient(handler).chat_stream(prompt="moo"))[3] == b"\xa4"
    with pytest.raises(TypeError):
        client.chat(prompt="moo", heat=1)


def test_messages_come_as_they_are():
    def handle_request(request: TextGeneration, context):
        return request.messages[0]["content"] + str(request.stream)

    client = TestClient(handle_request)
    assert client.chat([{"role": "user", "content": "moo"}]).text == "mooTrue"
    assert client.chat([{"role": "user", "content": "moo"}], stream=False).text == "mooFalse"
    with pytest.raises(errors.BadRequest) as caught:
        client.chat()
    assert caught.value.parameter == "prompt"


@pytest.mark.parametrize(
    ("given", "form"),
    [
        ({"type": "json_object"}, ResponseFormat("json_object")),
        ({"type": "text"}, None),
        ({"type": "json_schema", "json_schema": {"name": "any", "schema": {}}}, ResponseFormat("json_schema", {})),
        (ResponseFormat("json_schema", True), ResponseFormat("json_schema", True)),
    ],
)
def test_the_form_of_an_answer_may_be_json(given, form):
    seen = []

    def handle_request(request: TextGeneration, context):
        seen.append(request.response_format)
        return "{}"

    assert TestClient(handle_request).chat(prompt="moo", response_format=given).text == "{}"
    assert seen == [form]


def test_the_form_of_an_answer_is_a_known_one():
    with pytest.raises(errors.BadRequest) as caught:
        TestClient(chat).chat(prompt="moo", response_format={"type": "xml"})
    assert caught.value.parameter == "response_format.type"


@manifest_is_read
def test_a_model_that_gets_prompts_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "model.py").write_text("from omni import TextGeneration\n" + PROMPTED)
    manifest = tmp_path / "omni.toml"
    messages = [{"role": "user", "content": "moo"}]
    manifest.write_text('[model]\nkind = "text-generation"\n')
    with TestClient(tmp_path) as client:
        assert client.chat(prompt="moo").text == "moo"
        with pytest.raises(ValueError, match='pass prompt="…", or set'):
            client.chat(messages)
        manifest.write_text('[model]\nkind = "text-generation"\n[chat]\nrender = "model"\n')
        assert client.chat(messages).text == "None"
    sys.modules.pop("model", None)


def test_plain_handlers_may_chat_too():
    assert TestClient(lambda request, context: request.body.json["prompt"]).chat(prompt="moo").text == "moo"
    assert TestClient(lambda request, context: iter(["m", "oo"])).chat(prompt="").text == "moo"
    assert TestClient(lambda request, context: {"response": "moo"}).chat(prompt="").text == "moo"
    with pytest.raises(TypeError, match="no generated text"):
        TestClient(lambda request, context: 5).chat(prompt="")


def test_other_kinds():
    def embed(request: Embeddings, context):
        return [[len(text), 0.5] for text in (request.tokens if request.texts is None else request.texts)]

    def rerank(request: Rerank, context):
        return [len(document) for document in request.documents]

    def hear(request: SpeechToText, context):
        return Transcription(request.audio.bytes.decode(), request.language)

    def say(request: TextToSpeech, context):
        yield request.text.encode()
        yield (request.voice or "").encode()

    def paint(request: TextToImage, context):
        return [PNG] * request.n

    assert TestClient(embed).embed(["a", "bc"]) == [[1.0, 0.5], [2.0, 0.5]]
    assert TestClient(embed).embed(tokens=[[1, 2, 3]]) == [[3.0, 0.5]]
    assert TestClient(embed).embed([]) == []
    assert TestClient(rerank).rerank("q", ["a", "bc"]) == [1.0, 2.0]
    assert TestClient(hear).transcribe(b"moo", language="de") == Transcription("moo", "de")
    assert TestClient(say).speak("moo", voice="cow") == b"moocow"
    assert TestClient(paint).image("a cow", n=2) == [PNG, PNG]


def test_answers_of_any_handler():
    def handle_request(request, context):
        context.usage(tokens=3)
        return {
            "json": {"a": 1},
            "text": "moo",
            "bytes": b"moo",
            "large": b"x" * 300_000,
            "response": Response("moo", 201, {"x-a": "b"}, "text/plain"),
            "stream": iter(["a", {"b": 1}]),
            "error": Response.error(422, "no cow"),
        }[request.body.json]

    client = TestClient(handle_request)
    answer = client.run(json="json")
    assert (answer.status, answer.json, answer.usage) == (200, {"a": 1}, {"tokens": 3})
    assert (client.run(json="text").text, client.run(json="bytes").body) == ("moo", b"moo")
    assert len(client.run(json="large").body) == 300_000
    answer = client.run(json="response")
    assert (answer.status, answer.text, answer.media_type, answer.headers) == (201, "moo", "text/plain", [("x-a", "b")])
    assert client.run(json="stream").pieces == ["a", {"b": 1}]
    assert list(client.stream(json="stream")) == ["a", {"b": 1}]
    answer = client.run(json="error")
    assert (answer.status, answer.text) == (422, "no cow")
    with pytest.raises(errors.HTTPError, match="no cow"):
        list(client.stream(json="error"))
    assert client.run(body=b"{").status == 400
    with pytest.raises(KeyError):
        client.run(json="nothing")


def test_results_that_cannot_be_sent_are_raised():
    with pytest.raises(errors.Unserialisable, match="nan is not a JSON number"):
        TestClient(lambda request, context: float("nan")).run(json=1)
    with pytest.raises(errors.Unserialisable, match="piece 2"):
        TestClient(lambda request, context: iter([1, float("nan")])).run(json=1)


def batched(requests, context):
    context.usage(tokens=len(requests))
    return [Response.error(422, "no") if one.body.json is None else one.body.json for one in requests]


def test_batches():
    def handle_batch(requests, context):
        return batched(requests, context)

    client = TestClient(handle_batch)
    answers = client.batch([1, None, "a"])
    assert [(answer.status, answer.body) for answer in answers] == [(200, b"1"), (422, b"no"), (200, b'"a"')]
    assert client.run(json=5).json == 5
    with pytest.raises(TypeError, match="no `handle_batch`"):
        TestClient(chat).batch([1])


def test_streamed_batches():
    def handle_batch(requests: list[TextGeneration], context):
        yield [one.prompt for one in requests]
        yield [Finish("stop"), "more", Response.error(500, "no")]
        yield ["lost", "end", "lost"]

    answers = TestClient(handle_batch).batch([{"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"}])
    assert [answer.status for answer in answers] == [200, 200, 500]
    assert answers[1].text == "bmoreend"
    assert answers[0].pieces == ["a", Finish("stop")]
    assert answers[0].value == Completion("a", finish=Finish("stop"))


def test_batches_of_other_kinds():
    def handle_batch(requests: list[Embeddings], context):
        return [[[float(len(text))] for text in one.texts] for one in requests]

    answers = TestClient(handle_batch).batch([{"texts": ["a", "bc"]}, {"text": "abc"}, {}])
    assert [answer.value for answer in answers[:2]] == [[[1.0], [2.0]], [[3.0]]]
    assert (answers[2].status, "`texts`" in answers[2].text) == (400, True)

    def hear(requests: list[SpeechToText], context):
        return [one.audio.bytes.decode() for one in requests]

    assert [answer.value.text for answer in TestClient(hear).batch([b"moo", b"mu"])] == ["moo", "mu"]


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        (TextGeneration, "chat or chat_stream"),
        (Embeddings, "embed"),
        (Rerank, "rerank"),
        (SpeechToText, "transcribe"),
        (TextToSpeech, "speak"),
        (TextToImage, "image"),
    ],
)
def test_requests_of_a_kind_have_a_method_of_their_own(kind, method):
    def handle_request(request, context):
        raise AssertionError("not called")

    handle_request.__annotations__["request"] = kind
    client = TestClient(handle_request)
    with pytest.raises(TypeError, match=f"call `{method}` instead of `run`"):
        client.run(json={})
    with pytest.raises(TypeError, match=f"call `{method}` instead of `stream`"):
        list(client.stream(json={}))


MODEL = """
from omni import TextGeneration
def setup(context):
    global words
    words = (context.weights_dir / "words").read_text()
def teardown(context):
    print("torn down")
def handle_request(request: TextGeneration, context):
    return words
def count_tokens(given, context):
    return len(given)
"""


def test_a_directory(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "words").write_text("moo")
    for name in ("a", "b"):
        directory = tmp_path / name
        directory.mkdir()
        (directory / "model.py").write_text(MODEL.replace("return words", f"return words + {name!r}"))
        with TestClient(directory, weights_dir=tmp_path) as client:
            assert client.chat(prompt="").text == f"moo{name}"
            assert (client.count_tokens("abc"), client.count_tokens(messages=[{}])) == (3, 1)
        assert capsys.readouterr().out == "torn down\n"
    with pytest.raises(RuntimeError, match="setup raised"):
        TestClient(directory).chat(prompt="")
    with pytest.raises(NotADirectoryError):
        TestClient(tmp_path / "nothing").chat(prompt="")
    sys.modules.pop("model", None)


PROMPTED = """
def handle_request(request: TextGeneration, context):
    return str(request.prompt)
"""
TEST = """
def test_moo(model_client):
    assert model_client.chat(prompt="").text == "moo"
"""


def pytest_of(directory, test):
    """A run of pytest with the plugin alone, as it is where the package is installed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "omni._pytest", "-p", "no:cacheprovider", str(test)]
    environment = {**ENVIRONMENT, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("setting", ["", "[pytest]\nmodel_directory = inner\n"])
def test_the_fixture_finds_the_model(tmp_path, setting):
    directory = tmp_path / "inner" if setting else tmp_path
    (directory / "tests").mkdir(parents=True)
    (directory / "model.py").write_text(
        "from omni import TextGeneration\ndef handle_request(request: TextGeneration, context): return 'moo'\n"
    )
    (tmp_path / "pytest.ini").write_text(setting or "[pytest]\n")
    test = tmp_path / "test_it.py" if setting else tmp_path / "tests" / "test_it.py"
    test.write_text(TEST)
    told = pytest_of(tmp_path, test)
    assert told.returncode == 0, told.stdout


def test_a_model_that_is_nowhere_is_reported(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(TEST)
    told = pytest_of(tmp_path, tmp_path / "test_it.py")
    assert told.returncode != 0 and "set `model_directory`" in told.stdout
