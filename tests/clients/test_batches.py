"""The official `openai` SDK, unmodified, against a node: files and batches.

Run by `tests/functional/jobs.rs`, which starts the node and its models and says where it listens in OMNI_URL.
"""

import json
import os
import time

import openai
import pytest

URL = os.environ["OMNI_URL"]
ENDED = ("completed", "failed", "expired", "cancelled")


@pytest.fixture
def client():
    with openai.OpenAI(api_key="token", base_url=f"{URL}/v1", max_retries=0) as client:
        yield client


def line(custom_id, model, content, **body):
    messages = [{"role": "user", "content": content}]
    body = {"model": model, "messages": messages, **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body})


def upload(client, lines):
    return client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")


def create(client, lines, **more):
    file = upload(client, lines)
    return client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", **more
    )


def wait(client, batch):
    deadline = time.monotonic() + 90
    while batch.status not in ENDED:
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    return batch


def results(client, file):
    lines = [json.loads(line) for line in client.files.content(file).text.splitlines()]
    return {line["custom_id"]: line for line in lines}


def test_a_file_is_uploaded_listed_read_and_deleted(client):
    content = b'{"a": 1}\r\n--\r\n' * 200_000
    file = client.files.create(
        file=("in.jsonl", content), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert (file.bytes, file.filename, file.purpose, file.object) == (len(content), "in.jsonl", "batch", "file")
    assert file.expires_at == file.created_at + 3600
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).read() == content
    assert file.id in [other.id for other in client.files.list(purpose="batch")]
    assert file.id not in [other.id for other in client.files.list(purpose="batch_output")]
    assert client.files.delete(file.id).deleted
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            call(file.id)


def test_lists_have_pages(client):
    files = [upload(client, [f"{at}"]).id for at in range(5)]
    pages = client.files.list(limit=2)
    assert pages.has_more
    assert [file.id for file in pages if file.id in files] == files[::-1]


def test_what_an_upload_may_not_be(client):
    for purpose in ("fine-tune", "assistants"):
        with pytest.raises(openai.BadRequestError) as refusal:
            client.files.create(file=("x", b"x"), purpose=purpose)
        assert refusal.value.param == "purpose"


def test_a_batch_has_a_result_for_each_line(client):
    lines = [line(f"id-{at}", "chat", f"say {at}") for at in range(20)]
    batch = create(client, [*lines, line("missing", "no-such-model", "hi")], metadata={"a": "b"})
    assert (batch.object, batch.metadata, batch.endpoint) == ("batch", {"a": "b"}, "/v1/chat/completions")
    batch = wait(client, batch)
    assert batch.status == "completed", batch
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (21, 20, 1)
    assert batch.usage.output_tokens > 0
    output, errors = results(client, batch.output_file_id), results(client, batch.error_file_id)
    assert list(output) == [f"id-{at}" for at in range(20)]
    for at in range(20):
        response = output[f"id-{at}"]["response"]
        assert (response["status_code"], output[f"id-{at}"]["error"]) == (200, None)
        assert response["body"]["choices"][0]["message"]["content"] == f"say {at}"
    response = errors["missing"]["response"]
    assert (response["status_code"], response["body"]["error"]["code"]) == (404, "model_not_found")
    assert batch.id in [other.id for other in client.batches.list(limit=5)]


def test_all_requests_fail(client):
    batch = wait(client, create(client, [line(str(at), "chat", "x", temperature=7) for at in range(3)]))
    assert (batch.status, batch.output_file_id, batch.request_counts.failed) == ("completed", None, 3)
    assert [line["response"]["status_code"] for line in results(client, batch.error_file_id).values()] == [400] * 3


def test_a_file_with_faults_fails_its_batch(client):
    batch = wait(client, create(client, [line("a", "chat", "x"), line("a", "chat", "x"), "no json"]))
    assert batch.status == "failed"
    assert [(fault.line, fault.code) for fault in batch.errors.data] == [
        (2, "duplicate_custom_id"),
        (3, "invalid_json_line"),
    ]


def test_a_streamed_request_of_a_batch_fails(client):
    batch = wait(client, create(client, [line("a", "chat", "x", stream=True)]))
    assert results(client, batch.error_file_id)["a"]["error"]["code"] == "stream_not_supported"


def test_a_batch_is_cancelled(client):
    batch = create(client, [line(str(at), "slow", "x") for at in range(50)])
    deadline = time.monotonic() + 60
    while client.batches.retrieve(batch.id).request_counts.completed < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    batch = wait(client, batch)
    assert batch.status == "cancelled"
    output, errors = results(client, batch.output_file_id), results(client, batch.error_file_id)
    assert len(output) >= 2
    assert len(output) + len(errors) == 50
    assert {line["error"]["code"] for line in errors.values()} == {"batch_cancelled"}
    assert client.batches.cancel(batch.id).status == "cancelled"


def test_a_request_that_kills_its_instance_takes_no_other_along(client):
    lines = [line(str(at), "chat", "die" if at == 3 else f"say {at}") for at in range(8)]
    batch = wait(client, create(client, lines))
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 7, 1)
    assert results(client, batch.error_file_id)["3"]["error"]["code"] == "instance_died"


def test_requests_that_are_refused(client):
    file = upload(client, [line("a", "chat", "x")])
    good = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    for name, value in [("endpoint", "/v1/audio/speech"), ("completion_window", "1h"), ("metadata", {"a": "x" * 513})]:
        with pytest.raises(openai.BadRequestError) as refusal:
            client.batches.create(**{**good, name: value})
        assert refusal.value.param == name
    with pytest.raises(openai.NotFoundError):
        client.batches.create(**{**good, "input_file_id": "file-" + "0" * 32})
    with pytest.raises(openai.NotFoundError):
        client.batches.retrieve("batch_1")
