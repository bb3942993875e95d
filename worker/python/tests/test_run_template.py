"""Chat templates in the local run, rendered as transformers renders them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from local import ENVIRONMENT, manifest_is_read, serving

from omni._run import manifest
from omni._run.refusal import Refused
from omni._run.server import Server
from omni._run.template import ChatTemplate

CHATML = """{%- for message in messages %}
    {%- if message.role == 'tool' and loop.first %}{% break %}{% endif %}
<|im_start|>{{ message.role }}
{{ message.content }}
    {%- for call in message.tool_calls or [] %}
<call>{{ call.function.arguments | tojson }}</call>
    {%- endfor %}<|im_end|>
{% endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- generation %}{{ eos_token }}{% endgeneration %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@pytest.fixture
def jinja2():
    return pytest.importorskip("jinja2")


def template(directory, source, **config):
    (directory / "chat_template.jinja").write_text(source)
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return ChatTemplate(directory)


def user(text):
    return {"role": "user", "content": text}


def test_a_conversation(tmp_path, jinja2):
    made = template(tmp_path, CHATML, eos_token={"content": "</s>"})
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "<é>"}'}}
    assistant = {"role": "assistant", "content": None, "tool_calls": [call]}
    parts = user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])
    assert made.render([parts, assistant], [{"type": "function"}]) == (
        "<|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\n"
        '<call>{"a": "<é>"}</call><|im_end|>\n[{"type": "function"}]</s><|im_start|>assistant\n'
    )


def test_a_message_is_continued(tmp_path, jinja2):
    made = template(tmp_path, CHATML)
    prompt = made.render([user("a"), {"role": "assistant", "content": "The sky is "}], [], continues=True)
    assert prompt.endswith("<|im_start|>assistant\nThe sky is")


@pytest.mark.parametrize(
    "source, text",
    [
        ("{{ messages[0].role }}", "system"),
        ("{% if x == 'developer' %}{% endif %}{{ messages[0].role }}", "developer"),
        ("{{ effort }}{{ tools is none }}{{ strftime_now('%Y') | length }}", "lowTrue4"),
        ("{{ [1, {'b': 2}] | tojson(indent=1) | length }}", "22"),
        ("{{ ''.__class__ }}", ""),
    ],
)
def test_values_of_templates(tmp_path, jinja2, source, text):
    assert template(tmp_path, source).render([{"role": "developer", "content": "x"}], [], {"effort": "low"}) == text


def test_templates_by_name(tmp_path, jinja2):
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    made = ChatTemplate(tmp_path)
    assert (made.render([user("a")], []), made.render([user("a")], [{}])) == ("plain", "tools")


@pytest.mark.parametrize(
    "source, status, message",
    [
        ("{{ raise_exception('roles alternate') }}", 400, "roles alternate"),
        ("{{ 1 / 0 }}", 500, "the model failed on this request"),
        ("{% if %}", 500, "the model failed on this request"),
    ],
)
def test_failures(tmp_path, jinja2, source, status, message):
    with pytest.raises(Refused) as refused:
        template(tmp_path, source).render([user("a")], [])
    assert (refused.value.status, refused.value.message) == (status, message)


def test_variables_of_the_template_itself_are_not_a_clients(tmp_path, jinja2):
    with pytest.raises(Refused, match="cannot be set"):
        template(tmp_path, "x", eos_token="x").render([user("a")], [], {"eos_token": "y"})


def test_images_need_a_template_that_reads_parts(tmp_path, jinja2):
    image = [user([{"type": "image_url", "image_url": {"url": "https://x/y"}}])]
    with pytest.raises(Refused, match="text alone"):
        template(tmp_path, "{{ messages[0].content }}").render(image, [])
    parts = "{% for part in messages[0].content %}{{ part['type'] }}{% endfor %}"
    assert template(tmp_path, parts).render(image, []) == "image_url"


def test_without_jinja2_the_error_says_what_to_install(tmp_path):
    template(tmp_path, "x")
    code = (
        "import sys; sys.modules['jinja2'] = None\n"
        "from pathlib import Path; from omni._run.template import ChatTemplate\n"
        "try: ChatTemplate(Path(sys.argv[1])).render([{'role': 'user', 'content': 'a'}], [])\n"
        "except Exception as err: print(err.status, err)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    told = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True, timeout=60).stdout
    assert told.startswith("501 ") and "pip install jinja2" in told


@manifest_is_read
@pytest.mark.parametrize(
    "chat, source, noted",
    [
        ("", "<think>", True),
        ("", "plain", False),
        ("[chat]\nreasoning-parser = 'think'\n", "plain", True),
        ("[chat]\nrender = 'model'\n", "<think>", False),
    ],
)
def test_reasoning_that_a_node_separates_is_noted(tmp_path, jinja2, chat, source, noted):
    (tmp_path / "chat_template.jinja").write_text(source)
    (tmp_path / "omni.toml").write_text(f'[model]\nkind = "text-generation"\n{chat}')
    server = Server(tmp_path, manifest.read(tmp_path), 0, None)
    server.server_close()
    assert server.notes() == ["reasoning stays in the text here: a node separates it"] * noted


@manifest_is_read
def test_the_handler_gets_the_rendered_prompt(tmp_path, jinja2):
    openai = pytest.importorskip("openai")
    code = "from omni import *\ndef handle_request(request: TextGeneration, context): return request.prompt\n"
    files = {"chat_template__jinja": "{{ x }}|{{ messages[0].content }}|{{ reasoning_effort }}"}
    with serving(tmp_path, code, '[model]\nkind = "text-generation"\n', **files) as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        with openai.OpenAI(api_key="x", base_url=url, max_retries=0) as client:
            extra = {"chat_template_kwargs": {"x": 1}}
            create = client.chat.completions.create
            answer = create(model="moo", messages=[user("a")], reasoning_effort="low", extra_body=extra)
            assert answer.choices[0].message.content == "1|a|low"
        server.request("POST", "/ai/run/moo", json.dumps({"prompt": "b"}))
        assert json.loads(server.getresponse().read())["result"]["response"] == "|b|"
