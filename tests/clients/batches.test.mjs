// The official `openai` client of npm, unmodified, against a node: files and batches.
//
// Run by `tests/functional/jobs.rs`, which starts the node and its models and names its address in OMNI_URL.
import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI, { toFile } from "openai";

const client = new OpenAI({ apiKey: "token", baseURL: `${process.env.OMNI_URL}/v1`, maxRetries: 0 });
const ENDED = ["completed", "failed", "expired", "cancelled"];

const line = (id, content) => {
  const body = { model: "chat", messages: [{ role: "user", content }] };
  return JSON.stringify({ custom_id: `${id}`, method: "POST", url: "/v1/chat/completions", body });
};

async function create(lines) {
  const file = await client.files.create({ file: await toFile(Buffer.from(lines.join("\n")), "in.jsonl"), purpose: "batch" });
  return client.batches.create({ input_file_id: file.id, endpoint: "/v1/chat/completions", completion_window: "24h" });
}

async function ended(batch) {
  const deadline = Date.now() + 60_000;
  while (!ENDED.includes(batch.status)) {
    assert.ok(Date.now() < deadline, batch.status);
    await new Promise((wake) => setTimeout(wake, 50));
    batch = await client.batches.retrieve(batch.id);
  }
  return batch;
}

test("a batch has a result for each line", async () => {
  const batch = await ended(await create([...Array(10).keys()].map((id) => line(id, `say ${id}`))));
  assert.deepEqual([batch.status, batch.request_counts], ["completed", { total: 10, completed: 10, failed: 0 }]);
  const text = await (await client.files.content(batch.output_file_id)).text();
  const said = text.trim().split("\n").map((each) => JSON.parse(each).response.body.choices[0].message.content);
  assert.deepEqual(said, [...Array(10).keys()].map((id) => `say ${id}`));
});

test("files and batches are listed over pages, and deleted", async () => {
  const made = [];
  for (let at = 0; at < 3; at += 1) made.push((await create([line(0, "x")])).id);
  const listed = [];
  for await (const batch of client.batches.list({ limit: 2 })) listed.push(batch.id);
  assert.deepEqual(listed.filter((id) => made.includes(id)), made.reverse());
  const file = await client.files.create({ file: await toFile(Buffer.from("{}"), "x.jsonl"), purpose: "batch" });
  assert.equal((await client.files.delete(file.id)).deleted, true);
  await assert.rejects(client.files.retrieve(file.id), (error) => error.status === 404);
});
