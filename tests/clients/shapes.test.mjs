// Golden files of the codecs, read by the npm clients as answers of a server: each stream and each whole answer of
// `gateway/*/src/**/snapshots` through the client's own parser, without a node.
//
// Run by `tests/functional/clients.rs`.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, streamText, tool } from "ai";
import OpenAI from "openai";
import { createWorkersAI } from "workers-ai-provider";

globalThis.AI_SDK_LOG_WARNINGS = false;
const gateway = new URL("../../gateway/", import.meta.url);

const text = {
  text: 'Hél"lo\n',
  empty: "",
  reasoning: "4",
  "one tool": "I look.",
  "reasoning, text, tool": "So",
  length: "Once upon",
  "stop string": "1, 2",
  filtered: "I",
  usage: "Hi",
  logprobs: "Hi é",
  "two choices": "a",
  error: "Hel",
};
const calls = {
  "one tool": [{ city: "Bern" }],
  "two tools": [{ city: "Bern" }, { city: "Genf" }],
  "tool without arguments": [{}],
  "reasoning, text, tool": [{}],
};
const reasoning = { reasoning: "Let me think", "reasoning, text, tool": "Hm" };
const reasons = { length: "length", filtered: "content-filter", "two choices": "length" };

/** The shapes of a golden file by their names. */
function sections(path) {
  const body = readFileSync(new URL(path, gateway), "utf8").split("---\n").slice(2).join("---\n");
  const parts = body.split(/^## (.+)\n/m);
  const names = parts.filter((_, at) => at % 2 === 1);
  return names.map((name, at) => [name, `${parts[2 * at + 2].replace(/\n+$/, "")}\n\n`]);
}

const answering = (body, kind) => async () => new Response(body, { status: 200, headers: { "content-type": kind } });

const tools = {
  weather: tool({
    description: "w",
    inputSchema: jsonSchema({ type: "object", properties: { city: { type: "string" } } }),
  }),
};

const models = {
  "openai chat": [
    "openai/src/chat/snapshots/omni_openai__chat__tests__",
    (fetch) => createOpenAI({ apiKey: "x", baseURL: "http://node/v1", fetch }).chat("m"),
  ],
  "openai-compatible": [
    "openai/src/chat/snapshots/omni_openai__chat__tests__",
    (fetch) => createOpenAICompatible({ name: "node", baseURL: "http://node/v1", fetch, includeUsage: true })("m"),
  ],
  "openai responses": [
    "openai/src/responses/snapshots/omni_openai__responses__tests__",
    (fetch) => createOpenAI({ apiKey: "x", baseURL: "http://node/v1", fetch }).responses("m"),
  ],
  anthropic: [
    "anthropic/src/snapshots/omni_anthropic__tests__",
    (fetch) => createAnthropic({ apiKey: "x", baseURL: "http://node/v1", fetch })("m"),
  ],
  "workers-ai": [
    "workers-ai/src/text/snapshots/omni_workers_ai__text__tests__",
    (fetch) => createWorkersAI({ accountId: "a", apiKey: "x", fetch })("m"),
  ],
};
// Clients that do not show reasoning in this form, and ends that their API has no word for.
const noReasoning = new Set(["openai chat", "openai responses"]);

function compare(client, name, got) {
  assert.equal(got.text, text[name] ?? "");
  assert.deepEqual(
    got.toolCalls.map((call) => call.input),
    calls[name] ?? [],
  );
  for (const call of got.toolCalls) assert.equal(call.toolName, "weather");
  if (!noReasoning.has(client)) assert.equal(got.reasoningText ?? "", reasoning[name] ?? "");
  const expected = calls[name] ? "tool-calls" : (reasons[name] ?? "stop");
  if (!(client === "workers-ai" && name === "filtered")) assert.equal(got.finishReason, expected);
}

for (const [client, [path, make]] of Object.entries(models)) {
  for (const [name, body] of sections(`${path}streams_of_all_shapes.snap`)) {
    if (name === "two choices") continue; // which these clients never ask for
    test(`${client}, stream, ${name}`, async () => {
      let failed;
      const model = make(answering(body, "text/event-stream"));
      const result = streamText({
        model,
        prompt: "hi",
        tools,
        maxRetries: 0,
        onError: ({ error }) => (failed = error),
      });
      let seen = "";
      for await (const part of result.fullStream) if (part.type === "text-delta") seen += part.text;
      if (name === "error") {
        assert.equal(seen, text[name]);
        if (client !== "workers-ai") assert.ok(failed, "the failure was not noticed"); // which ignores it
        return;
      }
      assert.equal(failed, undefined, `${failed?.message ?? failed}`);
      const [whole, toolCalls, reasoningText, finishReason] = await Promise.all([
        result.text,
        result.toolCalls,
        result.reasoningText,
        result.finishReason,
      ]);
      compare(client, name, { text: whole, toolCalls, reasoningText, finishReason });
    });
  }
  for (const [name, body] of sections(`${path}whole_answers_of_all_shapes.snap`)) {
    test(`${client}, whole, ${name}`, async () => {
      const model = make(answering(body, "application/json"));
      compare(client, name, await generateText({ model, prompt: "hi", tools, maxRetries: 0 }));
    });
  }
}

for (const [name, body] of sections("openai/src/chat/snapshots/omni_openai__chat__tests__streams_of_all_shapes.snap")) {
  test(`openai, stream, ${name}`, async () => {
    const fetch = answering(body, "text/event-stream");
    const client = new OpenAI({ apiKey: "x", baseURL: "http://node/v1", fetch, maxRetries: 0 });
    const stream = client.chat.completions.stream({ model: "m", messages: [{ role: "user", content: "hi" }] });
    if (name === "error") return assert.rejects(stream.finalChatCompletion(), /died/);
    const final = await stream.finalChatCompletion();
    assert.equal(final.choices[0].message.content ?? "", text[name] ?? "");
    const got = (final.choices[0].message.tool_calls ?? []).map((call) => JSON.parse(call.function.arguments));
    assert.deepEqual(got, calls[name] ?? []);
  });
}
