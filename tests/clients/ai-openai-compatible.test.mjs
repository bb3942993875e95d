// The AI SDK (`ai`) with `@ai-sdk/openai-compatible`, unmodified, against a node.
//
// Run by `tests/functional/clients.rs`, which starts the node and its models and names its address in OMNI_URL.
import assert from "node:assert/strict";
import { suite, test } from "node:test";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText } from "ai";

import { absent, embeddings, failure, Person, reasoning, textGeneration, URL } from "./ai-behaviours.mjs";

const settings = { name: "node", apiKey: "token", baseURL: `${URL}/v1`, includeUsage: true };
const node = createOpenAICompatible({ ...settings, supportsStructuredOutputs: true });

suite("openai-compatible", () => {
  textGeneration(node("chat"));
  reasoning(node("chat"));
  embeddings(node.embeddingModel("vectors"));
  absent(node("absent"));

  test("completions", async () => {
    const { text } = await generateText({ model: node.completionModel("chat"), prompt: "hello", maxRetries: 0 });
    assert.match(text, /^You said: user:\nhello/); // the client's own form of a conversation
  });

  test("objects without a schema on the wire", async () => {
    const model = createOpenAICompatible(settings)("chat");
    const { object } = await generateObject({ model, prompt: "person", schema: Person, maxRetries: 0 });
    assert.deepEqual(object, { name: "Ada", age: 36 });
  });

  test("options of other servers reach the node", async () => {
    const model = node("chat");
    const ask = (options) =>
      generateText({ model, prompt: "hello", maxRetries: 0, providerOptions: { node: options } });
    assert.equal(
      (await ask({ user: "u1", reasoningEffort: "low", chat_template_kwargs: { enable_thinking: false } })).text,
      "You said: hello",
    );
    const error = await failure(ask({ guided_json: {} }));
    assert.equal(error.statusCode, 400);
    assert.match(error.message, /guided_json.*response_format/);
  });

  test("a parameter that the model does not honour is named", async () => {
    const error = await failure(
      generateText({ model: node("chat"), prompt: "hello", frequencyPenalty: 1, maxRetries: 0 }),
    );
    assert.equal(error.statusCode, 400);
    assert.match(error.message, /frequency_penalty/);
  });
});
