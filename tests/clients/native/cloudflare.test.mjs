// The official `cloudflare` client of npm, unmodified, against a model with real weights on the native engine.
//
// Run by `tests/functional/native_clients.rs`, which starts the node with SmolLM2-135M-Instruct as `chat` and names its
// address in OMNI_URL.
import assert from "node:assert/strict";
import { test } from "node:test";

import Cloudflare from "cloudflare";

import { CAPITAL, failure, LONG, PARIS } from "./questions.mjs";

const settings = { apiToken: "token", baseURL: `${process.env.OMNI_URL}/client/v4`, maxRetries: 0 };
const client = new Cloudflare(settings);
const run = (params) => client.ai.run("chat", { account_id: "x", ...params });
const question = { messages: [{ role: "user", content: CAPITAL }], temperature: 0 };

test("an answer whole and streamed", async () => {
  const answer = await run(question);
  assert.deepEqual([answer.response, answer.usage.completion_tokens], [PARIS, 8]);
  const text = await (await run({ ...question, stream: true }).asResponse()).text();
  const lines = text.split("\n").filter((line) => line.startsWith("data: "));
  assert.equal(lines.pop(), "data: [DONE]");
  assert.equal(lines.map((line) => JSON.parse(line.slice(6)).response ?? "").join(""), PARIS);
});

test("a prompt that is too long", async () => {
  const error = await failure(run({ ...question, prompt: LONG, messages: undefined }));
  assert.ok(error instanceof Cloudflare.BadRequestError);
});
