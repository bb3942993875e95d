"""Transcriptions: a form with a recording, and the text of it in one of five formats."""

from __future__ import annotations

from omni import _json
from omni._run import form, parameters, refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from omni._run.answer import Answer
    from omni._run.handling import Handling
    from omni._run.job import Head

    Json = dict[str, Any]

_FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
_LONGEST_PROMPT = 16 * 1024
_LONGEST_LANGUAGE = 64
_UNSUPPORTED = {
    "chunking_strategy": "the model decides",
    "include": "log probabilities are not computed",
    "keywords": "send them in `prompt`",
    "known_speaker_names": "speakers are not told apart",
    "known_speaker_references": "speakers are not told apart",
    "languages": "send one as `language`",
}


class TranscriptionTask:
    """A request for the text of a recording."""

    kind = "speech-to-text"

    def __init__(self, head: Head, body: bytes, media_type: str, translate: bool) -> None:
        """`translate`: the text is to be English."""
        self.head = head
        fields, files = form.read(body, media_type)
        for name in files:
            if name != "file":
                _check(name, "")
        if "file" not in files:
            raise refusal.missing("file")
        self._file = files["file"].content
        if not self._file:
            raise refusal.invalid("file", "`file` is empty")
        self.model = ""
        self._format = "json"
        self._translate = translate
        self._parameters: Json = {"translate": translate}
        for name, value in (("filename", files["file"].name), ("media_type", files["file"].media_type)):
            if value is not None:
                self._parameters[name] = value
        for name, text in fields:
            self._read(name, text)
        if not self.model:
            raise refusal.missing("model")

    def _read(self, name: str, value: str) -> None:
        if name == "model":
            self.model = value
        elif name == "response_format":
            if value not in _FORMATS:
                message = "`response_format` has to be `json`, `text`, `srt`, `verbose_json` or `vtt`"
                raise refusal.invalid(name, message)
            self._format = value
        elif name == "temperature":
            self._parameters[name] = _temperature(value)
        elif name == "prompt" or (name == "language" and not self._translate):
            longest = _LONGEST_LANGUAGE if name == "language" else _LONGEST_PROMPT
            if not value:
                raise refusal.invalid(name, f"`{name}` is empty")
            if len(value.encode()) > longest:
                raise refusal.invalid(name, f"`{name}` is longer than {longest} bytes")
            self._parameters[name] = value
        else:
            _check(name, value)

    def answer(self, calls: Handling, client: Answer) -> None:
        """Answers the request."""
        request = self.head.request(self._file, self.kind, parameters=self._parameters)
        value = _json.decode(calls.content(calls.call(request)))
        calls.in_time()
        if not isinstance(value, dict):
            raise refusal.unsendable("the handler's parameter needs the annotation `SpeechToText`")
        client.document(200, *self.rendered(value))

    def rendered(self, value: Json) -> tuple[str, bytes]:
        """Media type and body of the answer with this transcription."""
        if self._format in ("json", "verbose_json"):
            told = self._verbose(value) if self._format == "verbose_json" else {"text": value["text"]}
            return "application/json", _json.encode(told)
        if self._format == "text":
            return "text/plain; charset=utf-8", f"{value['text']}\n".encode()
        return (
            ("application/x-subrip", srt(value).encode())
            if self._format == "srt"
            else ("text/vtt", vtt(value).encode())
        )

    def _verbose(self, value: Json) -> Json:
        segments = value.get("segments", [])
        duration = value.get("duration", segments[-1]["end"] if segments else 0.0)
        language = value.get("language") or self._parameters.get("language") or "unknown"
        unknown = {"avg_logprob": 0.0, "compression_ratio": 0.0, "no_speech_prob": 0.0}
        temperature = self._parameters.get("temperature", 0.0)
        made = [
            {"id": id, "seek": 0, **segment, "tokens": [], "temperature": temperature, **unknown}
            for id, segment in enumerate(segments)
        ]
        task = "translate" if self._translate else "transcribe"
        head = {"text": value["text"], "task": task, "language": language, "duration": duration}
        return {**head, "segments": made}


def _check(name: str, value: str) -> None:
    """Checks a field that changes nothing, or cannot be honoured."""
    base = name[:-2] if name.endswith("[]") else name
    if base == "timestamp_granularities":
        if value == "word":
            raise refusal.unsupported(name, "words have no timestamps here: ask for `segment`")
        if value != "segment":
            raise refusal.invalid(name, f"`{name}` has to be `segment`")
    elif name == "stream":
        if value != "false":
            raise refusal.unsupported(name, "the text comes as a whole: leave `stream` out")
    elif base in _UNSUPPORTED:
        raise refusal.unsupported(name, f"`{name}` is not supported: {_UNSUPPORTED[base]}")
    elif name != "user":
        name = name[: parameters.LONGEST_NAME]
        raise refusal.unknown(name, f"there is no parameter `{name}`: leave it out")


def _temperature(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise refusal.wrong_type("temperature", "`temperature` has to be a number") from None
    if not 0 <= number <= 1:
        raise refusal.invalid("temperature", f"`temperature` is {value}: it has to be from 0 to 1")
    return number


def srt(value: Json) -> str:
    """Captions in the SubRip form."""
    return "".join(
        f"{number}\n{_time(part['start'], ',')} --> {_time(part['end'], ',')}\n{_block(part['text'])}\n\n"
        for number, part in enumerate(_segments(value), 1)
    )


def vtt(value: Json) -> str:
    """Captions in the WebVTT form."""
    parts = (
        f"{_time(part['start'], '.')} --> {_time(part['end'], '.')}\n{_block(part['text']).replace('-->', '->')}\n\n"
        for part in _segments(value)
    )
    return "WEBVTT\n\n" + "".join(parts)


def _segments(value: Json) -> list[Json]:
    """The segments, or the whole text as one of them."""
    segments: list[Json] = value.get("segments", [])
    if not segments and value["text"]:
        return [{"start": 0.0, "end": value.get("duration", 0.0), "text": value["text"]}]
    return segments


def _block(text: str) -> str:
    """Text without empty lines, which would end a caption."""
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def _time(seconds: float, separator: str) -> str:
    whole = max(0, round(seconds * 1000))
    hours, minutes = whole // 3_600_000, whole // 60_000 % 60
    return f"{hours:02}:{minutes:02}:{whole // 1000 % 60:02}{separator}{whole % 1000:03}"
