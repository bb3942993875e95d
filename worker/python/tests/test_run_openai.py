"""`python -m omni run`: the official `openai` client, unmodified, against models of all kinds."""

from __future__ import annotations

import io
import json

import pytest
from local import manifest_is_read, serving

openai = pytest.importorskip("openai")
pytestmark = manifest_is_read

CHAT = """
from omni import *
def handle_request(request: TextGeneration, context):
    said = request.prompt if request.messages is None else request.messages[-1]["content"]
    if said == "refuse":
        raise errors.BadRequest("no such voice", "voice")
    if said == "long":
        raise errors.ContextLengthExceeded("9 tokens, at most 8", "messages")
    if said == "raise":
        raise ValueError("secret")
    if said == "answers":
        yield "42"
        return
    if request.tools and request.messages[-1]["role"] == "user":
        yield Reasoning("the sky")
        for city in ("Paris", "Rome"):
            yield ToolCall("weather", {"city": city})
        return
    if said == "split":
        yield from ("Hel", "lo ST", "OP there")
        return
    for number, word in enumerate(str(said).split()):
        top = [(word, -0.5)] if request.logprobs is not None else []
        yield Token(("" if number == 0 else " ") + word, number, -0.5, top)
        if said.startswith("raise late"):
            raise ValueError("secret")
"""
BY_MODEL = '[model]\nkind = "text-generation"\n[chat]\nrender = "model"\n[generation]\nhonours = ["logprobs", "seed"]\n'
BY_NODE = '[model]\nkind = "text-generation"\n'
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def user(text):
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("chat"), CHAT, BY_MODEL) as server, client_of(server) as client:
        yield client.chat.completions


def client_of(server, base="/v1"):
    return openai.OpenAI(api_key="x", base_url=f"http://127.0.0.1:{server.port}{base}", max_retries=0)


def kind(name):
    return f'[model]\nkind = "{name}"\n'


def test_a_chat_completion(chat):
    answer = chat.create(model="moo", messages=user("one two"), user="me", metadata={"a": "b"})
    choice = answer.choices[0]
    assert (choice.message.content, choice.message.role, choice.finish_reason) == ("one two", "assistant", "stop")
    assert (answer.object, answer.model, answer.usage.completion_tokens) == ("chat.completion", "moo", 2)
    assert answer.id.startswith("chatcmpl-") and answer.usage.prompt_tokens > 0


def test_a_stream_has_one_role_one_end_and_one_usage(chat):
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(chat.create(model="moo", messages=user("one two three"), **options))
    deltas = [chunk.choices[0].delta for chunk in chunks[:-1]]
    assert "".join(delta.content or "" for delta in deltas) == "one two three"
    assert [delta.role for delta in deltas] == ["assistant", None, None, None, None]
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * 4 + ["stop"]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 3
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_calls_and_reasoning_of_the_handler(chat):
    answer = chat.create(model="moo", messages=user("hi"), tools=[TOOL])
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls" and message.content is None
    assert [call.function.arguments for call in message.tool_calls] == ['{"city":"Paris"}', '{"city":"Rome"}']
    assert message.reasoning_content == message.reasoning == "the sky"
    with chat.stream(model="moo", messages=user("hi"), tools=[TOOL]) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion().choices[0].message.tool_calls
    assert [call.function.name for call in streamed] == ["weather", "weather"]
    assert len({call.id for call in streamed}) == 2
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "it rains"}
    answer = chat.create(model="moo", messages=[*user("hi"), message, result], tools=[TOOL])
    assert answer.choices[0].message.content == "it rains"
    named = {"type": "function", "function": {"name": "weather"}}
    answer = chat.create(model="moo", messages=user("hi"), tools=[TOOL], tool_choice=named, parallel_tool_calls=False)
    assert answer.choices[0].finish_reason == "stop" and len(answer.choices[0].message.tool_calls) == 1


def test_stop_strings_and_the_limit_of_tokens(chat):
    stopped = chat.create(model="moo", messages=user("split"), stop=["STOP"])
    assert (stopped.choices[0].message.content, stopped.choices[0].finish_reason) == ("Hello ", "stop")
    cut = chat.create(model="moo", messages=user("a b c d"), max_tokens=2)
    assert (cut.choices[0].message.content, cut.choices[0].finish_reason) == ("a b", "length")


def test_choices_and_log_probabilities(chat):
    answer = chat.create(model="moo", messages=user("a b"), n=3, logprobs=True, top_logprobs=1, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    tokens = answer.choices[2].logprobs.content
    assert [token.token for token in tokens] == ["a", " b"] and tokens[0].top_logprobs[0].logprob == -0.5
    assert answer.usage.completion_tokens == 6
    stream = chat.create(model="moo", messages=user("a b"), n=2, stream=True)
    texts = {0: "", 1: ""}
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == {0: "a b", 1: "a b"}


@pytest.mark.parametrize(
    "options, parameter, code",
    [
        ({"logit_bias": {"5": 1}}, "logit_bias", "unsupported_parameter"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"temperature": True}, "temperature", "invalid_type"),
        ({"store": True}, "store", "unsupported_parameter"),
        ({"tool_choice": "auto"}, "tool_choice", "invalid_value"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "invalid_value"),
        ({"extra_body": {"temprature": 1}}, "temprature", "unknown_parameter"),
        ({"extra_body": {"guided_json": {}}}, "guided_json", "unsupported_parameter"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "response_format", None),
        ({"messages": [{"role": "bot", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": user([{"type": "image_url", "image_url": {"url": "https://x/y"}}])}, "messages", None),
        ({"stop": ["a"] * 17}, "stop", "invalid_value"),
    ],
)
def test_parameters_that_cannot_be_honoured_are_refused(chat, options, parameter, code):
    with pytest.raises(openai.BadRequestError) as refused:
        chat.create(**{"model": "moo", "messages": user("hi"), **options})
    assert (refused.value.param, refused.value.code) == (parameter, code or "unsupported_parameter")


def test_failures_have_the_form_of_the_api(chat):
    with pytest.raises(openai.NotFoundError) as absent:
        chat.create(model="absent", messages=user("hi"))
    assert (absent.value.code, absent.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as refused:
        chat.create(model="moo", messages=user("refuse"))
    assert (refused.value.body["message"], refused.value.param) == ("no such voice", "voice")
    with pytest.raises(openai.BadRequestError) as long:
        chat.create(model="moo", messages=user("long"))
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "messages")
    for stream in (True, False):
        with pytest.raises(openai.InternalServerError) as failed:
            chat.create(model="moo", messages=user("raise"), stream=stream)
        assert "secret" not in str(failed.value)
    with pytest.raises(openai.APIError):
        list(chat.create(model="moo", messages=user("raise late now"), stream=True))
    with pytest.raises(openai.InternalServerError, match="no JSON object"):
        chat.create(model="moo", messages=user("answers"), response_format={"type": "json_object"})
    answer = chat.create(model="moo", messages=user('{"a": 1}'), response_format={"type": "json_object"})
    assert json.loads(answer.choices[0].message.content) == {"a": 1}


def test_models_and_other_routes(tmp_path):
    with serving(tmp_path, CHAT, BY_MODEL) as server, client_of(server) as client:
        assert [model.id for model in client.models.list()] == ["moo"]
        assert client.models.retrieve("moo").owned_by == "omni"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("absent")
        with pytest.raises(openai.NotFoundError, match="a node does"):
            client.responses.create(model="moo", input="hi")
        with pytest.raises(openai.BadRequestError, match="makes no embeddings"):
            client.embeddings.create(model="moo", input="hi")
        with client_of(server, "/client/v4/accounts/x/ai/v1") as below:
            assert below.chat.completions.create(model="@cf/moo", messages=user("hi")).model == "@cf/moo"
        server.request("GET", "/v1/chat/completions")
        answer = server.getresponse()
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
        assert json.loads(answer.read())["error"]["code"] == "method_not_supported"


def test_what_a_node_does_with_text_is_refused(tmp_path):
    with serving(tmp_path, CHAT, BY_NODE) as server, client_of(server) as client:
        create = client.chat.completions.create
        with pytest.raises(openai.BadRequestError, match="no chat template"):
            create(model="moo", messages=user("hi"))
        with pytest.raises(openai.BadRequestError, match="does not parse tool calls"):
            create(model="moo", messages=user("hi"), tools=[TOOL])


def test_the_native_form_of_generated_text(tmp_path):
    with serving(tmp_path, CHAT, BY_MODEL) as server:

        def run(**body):
            server.request("POST", "/ai/run/moo", json.dumps(body))
            return server.getresponse().read()

        result = json.loads(run(prompt="one two", max_tokens=1))["result"]
        assert (result["response"], result["finish_reason"]) == ("one", "length")
        result = json.loads(run(prompt='{"a": 1}', response_format={"type": "json_object"}))["result"]
        assert result["response"] == {"a": 1}
        tool = {"name": "weather", "parameters": {"type": "object"}}
        result = json.loads(run(messages=user("hi"), tools=[tool], parallel_tool_calls=False))["result"]
        call = result["tool_calls"][0]
        assert (call["name"], call["arguments"], len(result["tool_calls"])) == ("weather", {"city": "Paris"}, 1)
        assert result["choices"][0]["message"]["reasoning_content"] == "the sky"
        events = run(prompt="split", stop="STOP", stream=True).decode().split("\n\n")
        assert events[:2] == ['data: {"response":"Hel"}', 'data: {"response":"lo "}']
        assert '"finish_reason":"stop","usage":{' in events[2] and events[3:] == ["data: [DONE]", ""]
        refused = json.loads(run(prompt="a", logit_bias={"1": 1}))
        assert refused["errors"] == [
            {"code": 5004, "message": "this model does not support `logit_bias`: leave it out"}
        ]


def test_completions(tmp_path):
    with serving(tmp_path, CHAT, BY_MODEL) as server, client_of(server) as client:
        create = client.completions.create
        answer = create(model="moo", prompt=["one two", "three"], n=2, echo=True)
        assert [choice.text for choice in answer.choices] == ["one twoone two"] * 2 + ["threethree"] * 2
        assert answer.usage.completion_tokens == 6
        tokens = create(model="moo", prompt="a b", logprobs=1).choices[0].logprobs
        assert (tokens.tokens, tokens.text_offset) == (["a", " b"], [0, 1])
        stream = list(create(model="moo", prompt="a b", stream=True, stream_options={"include_usage": True}))
        assert "".join(chunk.choices[0].text for chunk in stream[:-1]) == "a b"
        assert stream[-1].usage.completion_tokens == 2
        long = " ".join(["x"] * 20)
        assert create(model="moo", prompt=long).choices[0].finish_reason == "length"
        with pytest.raises(openai.BadRequestError, match="not token ids"):
            create(model="moo", prompt=[1, 2])


def test_embeddings(tmp_path):
    code = """
from omni import *
def handle_request(request: Embeddings, context):
    return [[float(len(one)), 0.5] for one in (request.tokens if request.texts is None else request.texts)]
"""
    with serving(tmp_path, code, kind("embeddings")) as server, client_of(server) as client:
        create = client.embeddings.create
        assert [row.embedding for row in create(model="moo", input=["a", "bc"]).data] == [[1.0, 0.5], [2.0, 0.5]]
        assert create(model="moo", input="a", encoding_format="float").data[0].embedding == [1.0, 0.5]
        assert create(model="moo", input=[[1, 2, 3]]).data[0].embedding == [3.0, 0.5]
        assert create(model="moo", input=[1, 2, 3]).usage.prompt_tokens == 3
        for wrong in ([], ["a", ""], [["a"]]):
            with pytest.raises(openai.BadRequestError):
                create(model="moo", input=wrong)
        server.request("POST", "/ai/run/moo", json.dumps({"text": ["a"]}))
        assert json.loads(server.getresponse().read())["result"]["shape"] == [1, 2]


def test_a_handler_of_batches(tmp_path):
    code = """
from omni import *
def handle_batch(requests: list[TextGeneration], context):
    yield [Token(request.prompt, 1) for request in requests]
    yield [Finish("length", Usage(5, 7)) for request in requests]
"""
    with serving(tmp_path, code, BY_NODE) as server, client_of(server) as client:
        answer = client.completions.create(model="moo", prompt=["a", "b"])
        assert [choice.text for choice in answer.choices] == ["a", "b"]
        assert (answer.choices[0].finish_reason, answer.usage.total_tokens) == ("length", 24)


def test_ranked_documents(tmp_path):
    code = """
from omni import *
def handle_request(request: Rerank, context):
    return [document.count(request.query) for document in request.documents]
"""
    with serving(tmp_path, code, kind("rerank")) as server:
        body = {"model": "moo", "query": "a", "documents": ["b", {"text": "aa"}, "a"], "top_n": 2}
        server.request("POST", "/v1/rerank", json.dumps(body))
        answer = json.loads(server.getresponse().read())
        assert answer["results"] == [
            {"index": 1, "relevance_score": 2.0, "document": {"text": "aa"}},
            {"index": 2, "relevance_score": 1.0, "document": {"text": "a"}},
        ]
        types = {
            "application/json; charset=utf-8": 200,
            "Application/Vnd.Api+JSON": 200,
            "application/x-www-form-urlencoded": 400,
            "+json": 400,
            "": 400,
        }
        for media_type, status in types.items():
            server.request("POST", "/v1/rerank", json.dumps(body), {"content-type": media_type})
            answer = server.getresponse()
            told = json.loads(answer.read())
            assert answer.status == status, (media_type, told)
            if status == 400:
                assert told["error"]["message"] == "this route takes JSON: send `content-type: application/json`"


def test_transcriptions(tmp_path):
    code = """
from omni import *
def handle_request(request: SpeechToText, context):
    text, told = request.audio.bytes.decode(), request.parameters
    if request.language:
        return f"{text} {request.language} {request.temperature} {told['filename']} {told['media_type']}"
    ends = [Segment(0, 1.25, text), Segment(1.25, 3661.5, "yes" if told["translate"] else "no")]
    return Transcription(text, "en", 3661.5, ends)
"""
    with serving(tmp_path, code, kind("speech-to-text")) as server, client_of(server) as client:
        create = client.audio.transcriptions.create
        sound = ("m.wav", io.BytesIO(b"a\r\nb"), "audio/wav")
        assert create(model="moo", file=sound, language="de", temperature=0.5).text == "a\r\nb de 0.5 m.wav audio/wav"
        assert create(model="moo", file=sound, response_format="text") == "a\r\nb\n"
        verbose = create(model="moo", file=sound, response_format="verbose_json")
        assert (verbose.duration, verbose.segments[1].text, verbose.language) == (3661.5, "no", "en")
        captions = create(model="moo", file=sound, response_format="srt")
        assert captions.startswith("1\n00:00:00,000 --> 00:00:01,250\na\nb\n\n2\n") and "01:01:01,500" in captions
        assert create(model="moo", file=sound, response_format="vtt").startswith("WEBVTT\n\n00:00:00.000 --> ")
        english = client.audio.translations.create(model="moo", file=sound, response_format="verbose_json")
        assert english.segments[1].text == "yes"
        for wrong in ({"response_format": "xml"}, {"stream": True}, {"timestamp_granularities": ["word"]}):
            with pytest.raises(openai.BadRequestError):
                create(model="moo", file=sound, **wrong)
        server.request("POST", "/v1/audio/transcriptions", b"{}", {"content-type": "application/json"})
        assert server.getresponse().status == 400


def test_speech(tmp_path):
    code = """
from omni import *
def handle_request(request: TextToSpeech, context):
    yield request.text.encode()
    yield f"{request.voice} {request.format} {request.speed}".encode()
"""
    with serving(tmp_path, code, kind("text-to-speech")) as server, client_of(server) as client:
        answer = client.audio.speech.create(model="moo", input="moo ", voice="cow", response_format="wav")
        assert (answer.content, answer.response.headers["content-type"]) == (b"moo cow wav 1.0", "audio/wav")
        with pytest.raises(openai.BadRequestError):
            client.audio.speech.create(model="moo", input="moo", voice="cow", instructions="loud")


def test_images(tmp_path):
    code = """
from omni import *
def handle_request(request: TextToImage, context):
    return [b"\\x89PNG\\r\\n\\x1a\\n" + f"{request.width}".encode()] * request.n
"""
    with serving(tmp_path, code, kind("text-to-image")) as server, client_of(server) as client:
        answer = client.images.generate(model="moo", prompt="a cow", n=2, size="512x256")
        assert [image.b64_json for image in answer.data] == ["iVBORw0KGgo1MTI="] * 2
        with pytest.raises(openai.BadRequestError):
            client.images.generate(model="moo", prompt="a cow", size="8x8")


def test_a_model_without_its_annotation_is_told_so(tmp_path):
    code = "def handle_request(request, context): return 'moo'\n"
    failed = pytest.raises(openai.InternalServerError, match="annotation `TextGeneration`")
    with serving(tmp_path, code, BY_NODE) as server, client_of(server) as client, failed:
        client.completions.create(model="moo", prompt="a")
