// The official `@anthropic-ai/sdk` client of npm, unmodified, against a node: messages, streams, tools, thinking, errors.
//
// Run by `tests/functional/clients.rs`, which starts the node and its models and names its address in OMNI_URL.
import assert from "node:assert/strict";
import { test } from "node:test";

import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ apiKey: "token", baseURL: process.env.OMNI_URL, maxRetries: 0 });
const user = (content) => [{ role: "user", content }];
const ask = (content, more = {}) =>
  client.messages.create({ model: "chat", max_tokens: 100, messages: user(content), ...more });
const failure = (promise) =>
  promise.then(
    () => assert.fail("no error"),
    (error) => error,
  );
const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [
  { name: "get_weather", description: "Weather of a city", input_schema: schema },
  { name: "get_time", input_schema: { type: "object" } },
];

test("models are listed", async () => {
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  assert.ok(names.includes("chat"));
});

test("a message", async () => {
  const answer = await ask("hello", {
    system: [{ type: "text", text: "Be short.", cache_control: { type: "ephemeral" } }],
  });
  assert.deepEqual([answer.content[0].text, answer.stop_reason], ["You said: hello", "end_turn"]);
  assert.ok(answer.usage.input_tokens > 0 && answer.usage.output_tokens > 0);
});

test("a stream", async () => {
  const stream = client.messages.stream({ model: "chat", max_tokens: 100, messages: user("count 5") });
  const deltas = [];
  stream.on("text", (delta) => deltas.push(delta));
  const final = await stream.finalMessage();
  assert.deepEqual([deltas.join(""), final.content[0].text, final.stop_reason], ["1 2 3 4 5", "1 2 3 4 5", "end_turn"]);
  assert.equal(final.usage.output_tokens, 5);
});

test("tool calls and their results", async () => {
  const first = await ask("two calls", { tools });
  const calls = first.content.filter((block) => block.type === "tool_use");
  assert.deepEqual([first.stop_reason, calls.map((call) => call.input.city)], ["tool_use", ["Paris", "Rome"]]);
  const results = calls.map((call) => ({
    type: "tool_result",
    tool_use_id: call.id,
    content: [{ type: "text", text: "sun" }],
  }));
  const messages = [...user("two calls"), { role: "assistant", content: first.content }, ...user(results)];
  const second = await client.messages.create({ model: "chat", max_tokens: 100, messages, tools });
  assert.equal(second.content[0].text, "The result is known.");
});

test("streamed tool calls, with and without arguments", async () => {
  const call = async (content) => {
    const stream = client.messages.stream({ model: "chat", max_tokens: 100, messages: user(content), tools });
    return (await stream.finalMessage()).content.map((block) => [block.type, block.name, block.input]);
  };
  assert.deepEqual(await call("weather"), [["tool_use", "get_weather", { city: "Paris" }]]);
  assert.deepEqual(await call("get_time"), [["tool_use", "get_time", {}]]);
});

test("choices of tools", async () => {
  const named = await ask("hello", { tools, tool_choice: { type: "tool", name: "get_time" } });
  assert.deepEqual(
    named.content.map((block) => block.name),
    ["get_time"],
  );
  const any = await ask("hello", { tools, tool_choice: { type: "any", disable_parallel_tool_use: true } });
  assert.equal(any.content[0].type, "tool_use");
  assert.equal((await ask("hello", { tools, tool_choice: { type: "none" } })).content[0].text, "You said: hello");
});

test("thinking goes back in the next request", async () => {
  const thinking = { type: "enabled", budget_tokens: 1024 };
  const first = await ask("think", { thinking, max_tokens: 2000 });
  assert.deepEqual(
    first.content.map((block) => block.type),
    ["thinking", "text"],
  );
  const messages = [...user("think"), { role: "assistant", content: first.content }, ...user("hello")];
  const second = await client.messages.create({ model: "chat", max_tokens: 2000, thinking, messages });
  assert.equal(second.content[0].text, "You said: hello");
});

test("tokens are counted", async () => {
  const { input_tokens } = await client.messages.countTokens({ model: "chat", messages: user("hello") });
  assert.equal(input_tokens, (await ask("hello")).usage.input_tokens);
});

test("errors keep status, type and message", async () => {
  const absent = await failure(ask("hello", { model: "absent" }));
  assert.ok(absent instanceof Anthropic.NotFoundError);
  assert.deepEqual([absent.status, absent.error.error.type], [404, "not_found_error"]);
  const unsupported = await failure(ask("hello", { top_k: 3 }));
  assert.ok(unsupported instanceof Anthropic.BadRequestError);
  assert.match(unsupported.message, /top_k/);
  assert.ok((await failure(ask("raise"))) instanceof Anthropic.InternalServerError);
  const stream = client.messages.stream({ model: "chat", max_tokens: 100, messages: user("raise late") });
  assert.ok((await failure(stream.finalMessage())) instanceof Anthropic.APIError);
});

test("an aborted stream frees the model", { timeout: 30_000 }, async () => {
  const stream = client.messages.stream({ model: "chat", max_tokens: 10_000, messages: user("slowly 10000") });
  stream.on("text", () => stream.abort());
  assert.ok((await failure(stream.finalMessage())) instanceof Anthropic.APIUserAbortError);
  assert.equal((await ask("hello")).content[0].text, "You said: hello");
});
