"""The golden files of the node's codec, for the local run: the same refusals and the same answers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from local import multipart

from omni import TextGeneration, Token, Usage
from omni._run import other_api
from omni._run.guard import Call, Delta
from omni._run.job import Head
from omni._run.openai import chat, completion
from omni._run.openai.audio import TranscriptionTask
from omni._run.openai.encoder import ChatEncoder, Choice, CompletionEncoder
from omni._run.openai.sampling import Generation
from omni._run.refusal import Refused

GATEWAY = Path(__file__).parents[3] / "gateway" / "openai" / "src"
CHAT = '{"model": "m", "messages": [{"role": "user", "content": "hi"}]'
COMPLETION = '{"model": "m", "prompt": "a"'
OTHERWISE = (
    '"content": "a", "content": "b"',  # Python's reader takes the last of two equal names
    '"1": 5, "1": 9',
    '"content": 7',  # messages that name other types
    '"logprobs": true',
    '"prompt": null',  # which counts as absent
)
"""Parts of bodies that are refused in other words, or not."""
HEAD = ("1a2b", 1700000000)
USAGE = Usage(12, 5, 8, 2)
FORMS = {"chat": ChatEncoder, "completion": CompletionEncoder}


def golden(api, name):
    (path,) = (GATEWAY / api / "snapshots").glob(f"*__{name}.snap")
    return path.read_text().split("---\n", 2)[2]


def refusals(api):
    """Bodies with the code, the parameter and the message of their refusal."""
    lines = golden(api, "refused_requests").splitlines()
    for given, told in zip(lines[::2], lines[1::2]):
        code, parameter, message = re.fullmatch(r"    (\w+) (\S+): (.*)", told).groups()
        body = given.replace("{…", CHAT).replace("…", '"a",' * 15)
        if api == "completion":
            body = f"{COMPLETION}, {given}}}" if given[0] == '"' else f"{COMPLETION[:-4]} {given}}}"
        if "not JSON" not in message and (given[0] in '{["' or given == "null"):
            yield body, code, parameter, message


@pytest.mark.parametrize("api, read, least", [("chat", chat.read, 65), ("completion", completion.read, 12)])
def test_refusals(api, read, least):
    cases = list(refusals(api))
    assert len(cases) >= least
    for body, code, parameter, message in cases:
        if any(part in body for part in OTHERWISE):
            continue
        with pytest.raises(Refused) as refused:
            read(body.encode())
        told = (refused.value.name, refused.value.parameter or "-", refused.value.message)
        assert told == (code, parameter, message), body


def test_names_in_other_apis_are_the_nodes():
    source = (GATEWAY.parents[1] / "codec/src/other_api.rs").read_text()
    same, routes = (source.split(f"const {table}")[1].split("\n];")[0] for table in ("SAME", "ROUTES"))
    groups = re.findall(r"    &\[(.*)\],", same)
    assert len(groups) == same.count("&[", same.index("=") + 3)
    assert [tuple(json.loads(f"[{group}]")) for group in groups] == list(other_api.SAME)
    assert re.findall(r'\("(\w+)", "(.*)"\)', routes) == list(other_api.ROUTES.items())
    known = {"model", "messages", "max_tokens", "stop", "text"}
    table = {
        "max_output_tokens": "max_tokens",
        "stop_sequences": "stop",
        "texts": "text",
        "input": "text",
        "query": None,
    }
    assert {name: other_api.same(name, known) for name in table} == table
    assert (other_api.routes("query"), other_api.routes("foo")) == ("`/v1/rerank`", None)


def scenarios(api, name):
    """Sections of a golden file by their names."""
    sections = re.split(r"^## (.*)\n", golden(api, name), flags=re.MULTILINE)[1:]
    return dict(zip(sections[::2], sections[1::2]))


def transcription(format, language=None):
    fields = {"model": b"whisper", "response_format": format.encode(), "language": language}
    told = [(name, "", content) for name, content in fields.items() if content]
    body = multipart([*told, ("file", '; filename="a.wav"', b"RIFF")])
    return TranscriptionTask(Head("i", [], None, 0.0), body, "multipart/form-data; boundary=x", translate=False)


def test_transcriptions_of_all_formats():
    parts = [{"start": 0.0, "end": 1.25, "text": " Hi."}, {"start": 1.25, "end": 3725.5, "text": "There\n\n--> you"}]
    full = {"text": "Hi. There --> you", "language": "english", "duration": 3725.5, "segments": parts}
    made = ""
    for format in ("json", "text", "srt", "verbose_json", "vtt"):
        kind, body = transcription(format).rendered(full)
        made += f"## {format}: {kind}\n{body.decode()}\n"
    for format in ("srt", "vtt", "verbose_json"):
        _, body = transcription(format, b"en").rendered({"text": "Hi"})
        made += f"## {format}, text alone\n{body.decode()}\n"
    assert made.rstrip() == golden("audio", "answers_of_all_formats").rstrip()


def encoder(api, model, choices, usage=False, logprobs=None):
    asked = Generation(model, [TextGeneration(logprobs=logprobs)], choices, stream_usage=usage)
    return FORMS[api](*HEAD, asked)


def tokens_of(logprobs):
    """Tokens of log probabilities in the chat form."""
    return [
        Token(one["token"], None, one["logprob"], [(top["token"], top["logprob"]) for top in one["top_logprobs"]])
        for one in (logprobs or {}).get("content", [])
    ]


def choice_of(told):
    message = told["message"]
    calls = [
        Call(at, call["id"], call["function"]["name"], call["function"]["arguments"])
        for at, call in enumerate(message.get("tool_calls", []))
    ]
    text, reasoning = message["content"] or "", message.get("reasoning_content", "")
    return Choice(text, reasoning, calls, tokens_of(told["logprobs"]), told["finish_reason"])


def test_whole_answers_of_chats():
    found = scenarios("chat", "whole_answers_of_all_shapes")
    assert len(found) >= 12
    for name, text in found.items():
        told = json.loads(text)
        choices = [choice_of(one) for one in told["choices"]]
        made = encoder("chat", told["model"], len(choices), logprobs=1 if name == "logprobs" else None).whole(
            choices, USAGE
        )
        assert json.dumps(made, ensure_ascii=False, separators=(",", ":")) == text.strip(), name


def events(text):
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def replayed(told):
    """The events of a stream, made anew from their own parts."""
    usage = any("usage" in event for event in told)
    logprobs = 1 if any(choice["logprobs"] for event in told for choice in event["choices"]) else None
    choices = len({choice["index"] for event in told for choice in event["choices"]})
    made = encoder("chat", told[0]["model"], choices, usage, logprobs)
    out = list(made.start())
    calls = {}
    for event in told[choices:]:
        for choice in event["choices"]:
            delta, index = choice["delta"], choice["index"]
            for call in delta.get("tool_calls", []):
                known = calls.setdefault(call["index"], Call(call["index"], call.get("id"), None, ""))
                known.name = known.name or call["function"].get("name")
                known.arguments = call["function"]["arguments"]
                if known.arguments:
                    out += made.deltas(index, Delta(call=known))
            tokens = tokens_of(choice["logprobs"])
            out += made.deltas(index, Delta(delta.get("content", ""), tokens, delta.get("reasoning_content", "")))
            if choice["finish_reason"] is not None:
                out += made.finish(index, choice["finish_reason"])
    return out + list(made.end(USAGE))


def test_streams_of_chats():
    found = scenarios("chat", "streams_of_all_shapes")
    compared = 0
    for name, text in found.items():
        told = events(text)
        arguments = [event for event in told if '"function": {"arguments"' in json.dumps(event)]
        begun = [event for event in told if '"type": "function"' in json.dumps(event)]
        if len(arguments) != len(begun) or "error" in told[-1]:
            continue  # arguments in several parts, which the local run sends as one; failures
        assert replayed(told) == told, name
        compared += 1
    assert compared >= 10


def test_whole_answers_of_completions():
    found = scenarios("completion", "whole_answers_of_all_shapes")
    compared = 0
    for name, text in found.items():
        told = json.loads(text)
        choices = [Choice(one["text"], reason=one["finish_reason"]) for one in told["choices"]]
        made = encoder("completion", told["model"], len(choices)).whole(choices, USAGE)
        if not any(one["logprobs"] for one in told["choices"]):
            assert json.dumps(made, ensure_ascii=False, separators=(",", ":")) == text.strip(), name
            compared += 1
    assert compared >= 8
