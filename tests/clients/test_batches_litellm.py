"""`litellm`, unmodified, against a node: files and batches.

Run by `tests/functional/jobs.rs`, which starts the node and its models and says where it listens in OMNI_URL.
"""

import json
import os
import time

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # read on import; else it is fetched

import litellm
import pytest

NODE = {"custom_llm_provider": "openai", "api_base": f"{os.environ['OMNI_URL']}/v1", "api_key": "token"}


def create(contents):
    lines = [
        json.dumps(
            {
                "custom_id": str(at),
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {"model": "chat", "messages": [{"role": "user", "content": content}]},
            }
        )
        for at, content in enumerate(contents)
    ]
    file = litellm.create_file(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch", **NODE)
    return litellm.create_batch(
        completion_window="24h", endpoint="/v1/chat/completions", input_file_id=file.id, metadata={"a": "b"}, **NODE
    )


def ended(batch):
    deadline = time.monotonic() + 60
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
        batch = litellm.retrieve_batch(batch_id=batch.id, **NODE)
    return batch


def lines(file):
    return [json.loads(line) for line in litellm.file_content(file_id=file, **NODE).text.splitlines()]


def test_a_batch_has_a_result_for_each_line():
    batch = ended(create([f"say {at}" for at in range(10)]))
    assert (batch.status, batch.metadata, batch.error_file_id) == ("completed", {"a": "b"}, None)
    said = [line["response"]["body"]["choices"][0]["message"]["content"] for line in lines(batch.output_file_id)]
    assert said == [f"say {at}" for at in range(10)]


def test_all_requests_fail():
    # No output file: some of litellm's own paths break on it, and so may others' if one is invented.
    batch = ended(create(["die"]))
    assert (batch.status, batch.output_file_id, batch.request_counts.failed) == ("completed", None, 1)
    assert lines(batch.error_file_id)[0]["error"]["code"] == "instance_died"


def test_lists_and_files():
    batch = create(["say a"])
    assert batch.id in [other.id for other in litellm.list_batches(limit=10, **NODE).data]
    assert litellm.file_retrieve(file_id=batch.input_file_id, **NODE).filename == "in.jsonl"
    assert batch.input_file_id in [file.id for file in litellm.file_list(**NODE)]
    assert litellm.file_delete(file_id=batch.input_file_id, **NODE).deleted
    with pytest.raises(Exception, match="404 - no such file"):
        litellm.file_retrieve(file_id=batch.input_file_id, **NODE)
    ended(batch)


def test_a_batch_is_cancelled():
    batch = litellm.cancel_batch(batch_id=create(["say a"] * 500).id, **NODE)
    assert ended(batch).status in ("cancelled", "completed")
