// The official `@anthropic-ai/sdk` client of npm, unmodified, against a model with real weights on the native engine.
//
// Run by `tests/functional/native_clients.rs`, which starts the node with SmolLM2-135M-Instruct as `chat` and names its
// address in OMNI_URL.
import assert from "node:assert/strict";
import { test } from "node:test";

import Anthropic from "@anthropic-ai/sdk";

import { CAPITAL, failure, LONG, PARIS, weather } from "./questions.mjs";

const client = new Anthropic({ apiKey: "token", baseURL: process.env.OMNI_URL, maxRetries: 0 });
const settings = { model: "chat", temperature: 0, max_tokens: 60 };
const user = (content) => [{ role: "user", content }];

test("a message whole and streamed", async () => {
  const whole = await client.messages.create({ ...settings, messages: user(CAPITAL) });
  assert.deepEqual([whole.content[0].text, whole.stop_reason], [PARIS, "end_turn"]);
  assert.equal(whole.usage.output_tokens, 8);
  const final = await client.messages.stream({ ...settings, messages: user(CAPITAL) }).finalMessage();
  assert.deepEqual([final.content[0].text, final.usage.output_tokens], [PARIS, 8]);
});

test("limits and stop sequences", async () => {
  const cut = await client.messages.create({ ...settings, max_tokens: 3, messages: user(CAPITAL) });
  assert.deepEqual([cut.content[0].text, cut.stop_reason], ["The capital of", "max_tokens"]);
  const stop_sequences = [" France"];
  const stopped = await client.messages.create({ ...settings, stop_sequences, messages: user(CAPITAL) });
  assert.deepEqual([stopped.content[0].text, stopped.stop_sequence], ["The capital of", " France"]);
});

test("a demanded tool call, whole and streamed", async () => {
  const tools = [{ name: weather.name, description: weather.description, input_schema: weather.parameters }];
  const options = { ...settings, tools, messages: user("What is the weather in Paris?") };
  const whole = await client.messages.create({ ...options, tool_choice: { type: "any" } });
  const call = whole.content.at(-1);
  assert.deepEqual([whole.stop_reason, call.type, call.name], ["tool_use", "tool_use", "get_weather"]);
  const tool_choice = { type: "tool", name: "get_weather" };
  const streamed = await client.messages.stream({ ...options, tool_choice }).finalMessage();
  assert.deepEqual(streamed.content.at(-1).input, call.input);
});

test("requests that are wrong are refused", async () => {
  const long = await failure(client.messages.create({ ...settings, messages: user(LONG) }));
  assert.ok(long instanceof Anthropic.BadRequestError);
  assert.match(long.message, /prompt is too long/);
});
