"""Rerank, recordings, speech and images over the run API, in the native form of Workers AI."""

from __future__ import annotations

import base64
import binascii

from omni import _json, tasks
from omni._engine import wire
from omni._run import parameters, refusal
from omni._run.openai.audio import vtt
from omni._run.openai.task import FORMATS, LONGEST_INPUT, LONGEST_PROMPT, MOST_INPUTS, SIDES, value_of
from omni._run.parameters import Parameters
from omni.tasks import Rerank, TextToImage, TextToSpeech

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ClassVar

    from omni._run.answer import Answer
    from omni._run.handling import Handling
    from omni._run.job import Head, Job

_LONGEST_HINT = 16 * 1024
_LONGEST_NAME = 256
_LONGEST_LANGUAGE = 64


def _envelope(calls: Handling, client: Answer, value: object) -> None:
    calls.in_time()
    client.whole(wire.json_response(0, _json.encode(value)))


def _header(head: Head, wanted: str) -> str:
    return ", ".join(value for name, value in head.headers if name.lower() == wanted)


def _accepted(head: Head) -> list[str]:
    """Media types that the client accepts."""
    ranges = (one.partition(";")[0].strip().lower() for one in _header(head, "accept").split(","))
    return [one for one in ranges if one]


def _either(given: Parameters, first: str, second: str) -> str:
    """The name of the parameter that is there, of two spellings."""
    if given.has(first) and given.has(second):
        raise refusal.invalid(second, f"`{first}` and `{second}` exclude each other")
    return second if given.has(second) else first


class NativeRerank:
    """A request for the relevance of documents."""

    def __init__(self, head: Head, body: bytes) -> None:
        self.head = head
        given = parameters.of_body(body, ("contexts", "query", "top_k"), {})
        query = given.text("query", required=True) or ""
        documents = []
        for at, context in enumerate(given.items("contexts", MOST_INPUTS, required=True)):
            text = Parameters(context, ("text",), at=f"contexts[{at}]").text("text")
            if text is None:
                raise refusal.missing(f"contexts[{at}].text")
            documents.append(text)
        self._asked = Rerank(query, documents, given.integer("top_k", 1))

    def answer(self, calls: Handling, client: Answer) -> None:
        """Answers the request."""
        scores: list[float] = value_of(calls, self.head.request(tasks.to_json(self._asked), "rerank"))["scores"]
        ranked = sorted(range(len(scores)), key=lambda at: -scores[at])[: self._asked.top_n]
        _envelope(calls, client, {"response": [{"id": at, "score": scores[at]} for at in ranked]})


class NativeTranscription:
    """A request for the text of a recording: JSON with the file, or the file itself."""

    _UNSUPPORTED: ClassVar[dict[str, str]] = {
        "beam_size": "the model decides",
        "compression_ratio_threshold": "the model decides",
        "condition_on_previous_text": "the model decides",
        "hallucination_silence_threshold": "the model decides",
        "log_prob_threshold": "the model decides",
        "no_speech_threshold": "the model decides",
        "prefix": "send it as `initial_prompt`",
    }

    def __init__(self, head: Head, body: bytes) -> None:
        self.head = head
        self._parameters: dict[str, Any] = {}
        media_type = _header(head, "content-type")
        essence = media_type.partition(";")[0].strip().lower()
        if essence != "application/json" and not essence.endswith("+json") and (essence or body.lstrip()[:1] != b"{"):
            self._file = body
            if media_type:
                self._parameters["media_type"] = media_type
            return
        known = ("audio", "initial_prompt", "language", "source_lang", "target_lang", "task", "vad_filter")
        given = parameters.of_body(body, known, self._UNSUPPORTED)
        self._file = _file(given)
        if given.flag("vad_filter"):
            raise refusal.unsupported("vad_filter", "the model decides: leave `vad_filter` out")
        if given.text("target_lang") not in (None, "en", "english"):
            raise refusal.unsupported("target_lang", "recordings are translated into `en` alone")
        language = given.text(_either(given, "language", "source_lang"), _LONGEST_LANGUAGE)
        prompt = given.text("initial_prompt", _LONGEST_HINT)
        translates = given.word("task", ("transcribe", "translate")) == "translate" or given.has("target_lang")
        found = {"language": language, "prompt": prompt, "translate": translates or None}
        self._parameters = {name: value for name, value in found.items() if value is not None}

    def answer(self, calls: Handling, client: Answer) -> None:
        """Answers the request."""
        value = value_of(calls, self.head.request(self._file, "speech-to-text", parameters=self._parameters))
        info = {name: value[name] for name in ("language", "duration") if name in value}
        text = value["text"]
        answer = {"text": text, "word_count": len(text.split()), "vtt": vtt(value), "transcription_info": info}
        segments = [{**one, "word_count": len(one["text"].split())} for one in value.get("segments", [])]
        _envelope(calls, client, {**answer, "segments": segments} if segments else answer)


def _file(given: Parameters) -> bytes:
    audio = given.get("audio")
    if audio is None:
        raise refusal.missing("audio")
    try:
        text = audio.partition(";base64,")[2] if isinstance(audio, str) and audio.startswith("data:") else audio
        file = base64.b64decode(text, validate=True) if isinstance(text, str) else bytes(given.items("audio", 1 << 40))
    except (binascii.Error, TypeError, ValueError):
        raise refusal.invalid("audio", "`audio` has to be base64, or an array of the file's bytes") from None
    if not file:
        raise refusal.invalid("audio", "`audio` is empty")
    return file


class NativeSpeech:
    """A request for the sound of a text."""

    _UNSUPPORTED: ClassVar[dict[str, str]] = {
        "bit_rate": "the model decides",
        "container": "the model decides",
        "sample_rate": "the model decides",
    }

    def __init__(self, head: Head, body: bytes) -> None:
        self.head = head
        known = ("encoding", "lang", "prompt", "speaker", "speed", "text", "voice")
        given = parameters.of_body(body, known, self._UNSUPPORTED)
        text = given.text(_either(given, "prompt", "text"), LONGEST_INPUT, required=True) or ""
        voice = given.text(_either(given, "speaker", "voice"), _LONGEST_NAME)
        form, speed = given.word("encoding", FORMATS), given.number("speed", 0.25, 4)
        self._asked = TextToSpeech(text, voice, form, speed, given.text("lang", _LONGEST_NAME))

    def answer(self, calls: Handling, client: Answer) -> None:
        """Answers the request."""
        last = calls.call(self.head.request(tasks.to_json(self._asked), "text-to-speech"))
        accepted = _accepted(self.head)
        if accepted and all(one == "application/json" for one in accepted):
            _envelope(calls, client, {"audio": base64.b64encode(calls.content(last)).decode()})
        else:
            calls.write(last, client)


class NativeImage:
    """A request for an image."""

    _UNSUPPORTED: ClassVar[dict[str, str]] = {
        "image": "images are made of text alone",
        "image_b64": "images are made of text alone",
        "lora": "adapters are not loaded",
        "mask": "images are made of text alone",
        "strength": "images are made of text alone",
    }

    def __init__(self, head: Head, body: bytes) -> None:
        self.head = head
        known = ("guidance", "height", "negative_prompt", "num_steps", "prompt", "seed", "steps", "width")
        given = parameters.of_body(body, known, self._UNSUPPORTED)
        self._asked = TextToImage(
            given.text("prompt", LONGEST_PROMPT, required=True) or "",
            given.text("negative_prompt", LONGEST_PROMPT) or None,
            1,
            given.integer("width", *SIDES),
            given.integer("height", *SIDES),
            given.integer("seed", -(2**63), 2**63 - 1),
            given.integer(_either(given, "num_steps", "steps"), 1, 1000),
            given.number("guidance", 0, 1000),
        )

    def answer(self, calls: Handling, client: Answer) -> None:
        """Answers the request, with the image's bytes if the client asks for them."""
        value = value_of(calls, self.head.request(tasks.to_json(self._asked), "text-to-image"))
        image = value["images"][0]
        if any(one.startswith("image/") for one in _accepted(self.head)):
            client.document(200, image["media_type"], base64.b64decode(image["data"]))
        else:
            _envelope(calls, client, {"image": image["data"]})


KINDS: dict[str, Callable[[Head, bytes], Job]] = {
    "rerank": NativeRerank,
    "speech-to-text": NativeTranscription,
    "text-to-image": NativeImage,
    "text-to-speech": NativeSpeech,
}
"""Requests of the run API, by the model's kind."""
