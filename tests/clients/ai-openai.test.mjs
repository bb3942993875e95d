// The AI SDK (`ai`) with `@ai-sdk/openai`, unmodified, against a node: `/v1/responses`, its default, and chat.
//
// Run by `tests/functional/clients.rs`, which starts the node and its models and names its address in OMNI_URL.
import assert from "node:assert/strict";
import { suite, test } from "node:test";

import { createOpenAI } from "@ai-sdk/openai";
import { generateText } from "ai";

import { absent, conversation, embeddings, failure, textGeneration, URL } from "./ai-behaviours.mjs";

const node = createOpenAI({ apiKey: "token", baseURL: `${URL}/v1` });

suite("openai responses", () => {
  // The provider has no stop strings here, and refers to earlier answers by their ids unless `store` is false.
  textGeneration(node("chat"), { has: { stop: false, turns: false } });
  conversation(node("chat"), { providerOptions: { openai: { store: false } } });
  absent(node("absent"));

  test("references to stored answers are refused with what to do", async () => {
    const messages = [{ role: "user", content: "hello" }];
    const { response } = await generateText({ model: node("chat"), messages, maxRetries: 0 });
    messages.push(...response.messages, { role: "user", content: "hello again" });
    const error = await failure(generateText({ model: node("chat"), messages, maxRetries: 0 }));
    assert.equal(error.statusCode, 400);
    assert.match(error.message, /not stored.*`store`.*`false`/);
  });
});

suite("openai chat", () => {
  textGeneration(node.chat("chat"));
  absent(node.chat("absent"));
});

suite("openai embeddings", () => embeddings(node.embedding("vectors")));
