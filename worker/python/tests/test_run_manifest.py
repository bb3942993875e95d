"""`omni.toml` in the local run and in tests: what a node refuses is refused at the start, in its words."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from local import ENVIRONMENT, manifest_is_read, running, write_model

from omni._run import keys, manifest
from omni._run.keys import Items, Text
from omni.testing import TestClient

ROOT = Path(__file__).parent.parent.parent.parent
PLAIN = "def handle_request(request, context): return 1\n"
TYPED = "from omni import TextGeneration\ndef handle_request(request: TextGeneration, context): return 'moo'\n"
GENERATES = '[model]\nkind = "text-generation"\n'


def kind_of(value, sizes):
    """A value of the schema as `keys` has it, without the words of messages."""
    if "$ref" in value:
        return sizes[value["$ref"].rpartition("/")[2]]["pattern"]
    if "anyOf" in value:
        return (True, False, "auto")
    if "enum" in value:
        return tuple(value["enum"])
    if value["type"] == "array":
        return [kind_of(value["items"], sizes)]
    if value["type"] == "boolean":
        return keys.FLAG
    if value["type"] == "string":
        return value.get("pattern", "")
    return value["minimum"], value["maximum"], value["type"] == "integer"


def form(kind):
    """A value of `keys`, without the words of messages."""
    if isinstance(kind, Items):
        return [form(kind.item)]
    return kind.pattern if isinstance(kind, Text) else tuple(kind)


def test_keys_are_those_of_the_schema():
    schema = json.loads((ROOT / "config/schema/omni.schema.json").read_text())
    sections = schema["properties"]
    assert sections.pop("schema")["const"] == keys.SCHEMA.least == keys.SCHEMA.most
    assert sections.pop("env")["propertyNames"]["pattern"] == keys.VARIABLE
    sizes = schema["$defs"]
    expected = {
        section: {key: kind_of(value, sizes) for key, value in told["properties"].items()}
        for section, told in sections.items()
    }
    assert {name: {key: form(kind) for key, kind in section.items()} for name, section in keys.KEYS.items()} == expected


@pytest.mark.parametrize(
    ("known", "more", "file"),
    [(keys.TOOL_PARSERS, ["auto"], "dialect.rs"), (keys.REASONING_PARSERS, ["auto", "none"], "reasoning.rs")],
)
def test_parsers_are_those_of_the_node(known, more, file):
    source = (ROOT / "gateway/tool-parser/src" / file).read_text()
    listed = source[source.index("pub const ALL") :].partition("];")[0]
    assert list(known) == [*more, *re.findall(r'\("([^"]+)", Self::', listed)]


@manifest_is_read
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[model\n", "not valid TOML: "),
        ("[resources]\nmemmory = '7GiB'\n", "unknown key `resources.memmory` (line 2): did you mean `memory`?"),
        ("model.knd = 'rerank'\n", "unknown key `model.knd` (line 1): did you mean `kind`?"),
        ("x = 1\n", "unknown key `x` (line 1): known here: schema, model, "),
        ("[modle]\n", "unknown key `modle` (line 1): did you mean `model`?"),
        ("[chat]\n'a b' = 1\n", 'unknown key `chat."a b"` (line 2): known here: render, tool-parser, reasoning-parser'),
        ("model = 1\n", "`model` (line 1): expected a table `[model]`, found the number 1"),
        ("schema = 2\n", "`schema` (line 1): expected a whole number from 1 to 1, found the number 2"),
        (
            "[model]\nkind = 'text'\n",
            '`model.kind` (line 2): expected "custom" or "text-generation" or "embeddings" or "rerank" or '
            '"speech-to-text" or "text-to-speech" or "text-to-image", found "text"',
        ),
        (
            "[model]\nentrypoint = 'model'\n",
            '`model.entrypoint` (line 2): expected module and function such as "model:handle_request", found "model"',
        ),
        (
            "[scaling]\nqueue = '3'\n",
            '`scaling.queue` (line 2): expected a whole number from 0 to 100000, found "3": write it without quotes',
        ),
        (
            "[timeouts]\n\nrequest = 30\n",
            '`timeouts.request` (line 3): expected a duration such as "30s", found the number 30: write it in quotes',
        ),
        ("[limits]\nbody = '1.5GiB'\n", '`limits.body` (line 2): expected a size such as "512MiB", found "1.5GiB"'),
        ("[python]\nzygote = 1\n", '`python.zygote` (line 2): expected true or false or "auto", found the number 1'),
        (
            "[generation]\nhonours = ['seed', 'warmth']\n",
            '`generation.honours[1]` (line 2): expected "audio" or "ignore-eos"',
        ),
        (
            "[python]\npreload = 'numpy'\n",
            '`python.preload` (line 2): expected a list of at most 256 values: ["…", "…"]',
        ),
        ("[env]\nPATH = '/x'\n", "`env.PATH` (line 2): a model cannot set a variable of this name"),
        (
            "[env]\nA = 1\n",
            '`env.A` (line 2): expected a text such as "value", found the number 1: write it in quotes',
        ),
        (
            "[chat]\nrender = 'model'\n",
            '`chat.render` (line 2): only kind = "text-generation" in [model] has it: remove it',
        ),
        ("[generation]\nhonours = ['seed']\n", "`generation.honours` (line 2): only kind = "),
        (
            f"{GENERATES}[chat]\ntool-parser = 'hermes2'\n",
            '`chat.tool-parser` (line 4): there is no parser "hermes2": write one of auto, hermes, ',
        ),
        ("[batching]\nisolate = true\n", "`batching.isolate` (line 2): batches of one request are not divided"),
        ("[batching]\nmax = 4\n[scaling]\nconcurrency = 2\n", "`scaling.concurrency` (line 4): batches of "),
        ("[runtime]\nengine = 'openai'\n", "`runtime.engine` (line 2): only a node starts the server"),
        ("[runtime]\nengine = 'native'\n", '`runtime.engine` (line 2): only a node has engine = "native": serve '),
    ],
)
def test_a_manifest_that_a_node_refuses(tmp_path, text, message):
    (tmp_path / "omni.toml").write_text(text)
    with pytest.raises(manifest.ManifestError) as caught:
        manifest.read(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/omni.toml: {message}")
    assert "\n" not in str(caught.value)


@manifest_is_read
def test_all_problems_are_reported(tmp_path):
    (tmp_path / "omni.toml").write_text("[model]\nkind = 1\nname = 'x'\n")
    with pytest.raises(manifest.ManifestError) as caught:
        manifest.read(tmp_path)
    assert [line.count("(line ") for line in str(caught.value).splitlines()] == [1, 1]


@manifest_is_read
def test_manifests_of_the_models_here_are_taken():
    found = {path.parent.name: path.parent for path in ROOT.glob("models/*/omni.toml")}
    assert len(found) > 3
    for name in ("chat", "llama"):
        directory = found.pop(name)
        refusal = r"^[^\n]+/omni\.toml: `runtime\.engine` \(line \d+\): only a node [^\n]+$"
        with pytest.raises(manifest.ManifestError, match=refusal):
            manifest.read(directory)
        with pytest.raises(RuntimeError, match=refusal), TestClient(directory):
            pass
    for directory in found.values():
        manifest.read(directory)


@manifest_is_read
@pytest.mark.parametrize(
    ("model", "text", "files", "message"),
    [
        (PLAIN, "[model]\nname = 'moo'\n", {}, "omni.toml: unknown key `model.name` (line 2): "),
        (PLAIN, "[batching]\nmax = 4\n", {}, "omni.toml sets `max` of [batching], and the model has no `handle_batch`"),
        (
            TYPED,
            GENERATES,
            {"chat_template.jinja": "{% for m in messages %}\n{{ m.content }\n{% endfor %}"},
            "chat_template.jinja:2: the template cannot be used: ",
        ),
        (
            TYPED,
            GENERATES,
            {"tokenizer_config.json": '{"chat_template": "{% if %}"}'},
            "template `default`: the template",
        ),
        (TYPED, GENERATES, {"tokenizer_config.json": "{"}, "cannot be read: JSONDecodeError"),
        (
            TYPED,
            "[model]\nkind = 'rerank'\n",
            {},
            'the handler takes requests for text-generation, and omni.toml has `kind = "rerank"` in [model]: write '
            '`kind = "text-generation"`, or change the annotation',
        ),
    ],
)
def test_a_model_that_a_node_refuses_does_not_start(tmp_path, monkeypatch, model, text, files, message):
    if files:
        pytest.importorskip("jinja2")
    write_model(tmp_path, model)
    (tmp_path / "omni.toml").write_text(text)
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    command = [sys.executable, "-m", "omni", "run", str(tmp_path), "--port", "0"]
    run = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=30, check=False)
    assert run.returncode == 1
    assert message in run.stderr and "Traceback" not in run.stderr
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "model", raising=False)
    with pytest.raises(RuntimeError) as caught, TestClient(tmp_path):
        pass
    assert message in str(caught.value)
    sys.modules.pop("model", None)


@manifest_is_read
def test_a_typed_handler_without_a_kind_is_noted(tmp_path):
    directory = tmp_path / "moo"
    directory.mkdir()
    write_model(directory, TYPED)
    with running(directory) as (process, _):
        note = process.stderr.readline()
    assert note.startswith('the handler takes requests for text-generation: with `kind = "text-generation"` in [model]')
