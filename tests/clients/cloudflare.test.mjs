// The official `cloudflare` client of npm, unmodified, against a node: bytes, streams, text, embeddings, errors.
//
// Run by `tests/functional/clients.rs`, which starts the node and its models and names its address in OMNI_URL.
import assert from "node:assert/strict";
import { test } from "node:test";

import Cloudflare from "cloudflare";

const settings = { apiToken: "token", baseURL: `${process.env.OMNI_URL}/client/v4`, maxRetries: 0 };
const client = new Cloudflare(settings);
const run = (model, params, options) => client.ai.run(model, { account_id: "x", ...params }, options);
const failure = (promise) =>
  promise.then(
    () => assert.fail("no error"),
    (error) => error,
  );

const weather = { name: "get_weather", parameters: { type: "object", properties: { city: { type: "string" } } } };
const time = { name: "get_time", parameters: { type: "object", properties: {} } };
const person = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer" } },
  required: ["name", "age"],
};

/** The events of a stream that the client hands over as it is. */
async function events(response) {
  const text = await response.text();
  const lines = text
    .split("\n")
    .filter((line) => line.startsWith("data: "))
    .map((line) => line.slice(6));
  assert.equal(lines.pop(), "[DONE]");
  return lines.map((line) => JSON.parse(line));
}

test("a name with slashes is one model", async () => {
  assert.deepEqual(await run("@cf/meta/echo", { prompt: "hi" }), { prompt: "hi" });
});

test("query and headers of the caller", async () => {
  const options = { query: { tag: "a b" }, headers: { "x-session-affinity": "s1" } };
  assert.deepEqual(await run("echo", { prompt: "hi" }, options), { prompt: "hi" });
});

test("a response keeps bytes and headers", async () => {
  const response = await run("picture", { prompt: "" }).asResponse();
  assert.equal(response.headers.get("content-type"), "image/png");
  assert.equal(Buffer.from(await response.arrayBuffer()).toString("latin1"), "\x89PNG\r\n\x1a\nnot really");
});

test("generated text", async () => {
  const answer = await run("chat", { prompt: "hello", max_tokens: 50, temperature: 0.5 });
  assert.deepEqual([answer.response, answer.finish_reason], ["You said: hello", "stop"]);
  assert.ok(answer.usage.total_tokens > 0);
  const messages = [
    { role: "system", content: "Be short." },
    { role: "user", content: "hello" },
  ];
  assert.equal((await run("chat", { messages })).response, "You said: hello");
});

test("a stream of generated text", async () => {
  const parts = await events(await run("chat", { prompt: "count 3", stream: true }).asResponse());
  assert.equal(parts.map((part) => part.response ?? "").join(""), "1 2 3");
  assert.equal(parts.at(-1).usage.completion_tokens, 3);
});

test("tool calls and their results", async () => {
  const ask = async (content, tools) =>
    (await run("chat", { messages: [{ role: "user", content }], tools })).tool_calls;
  const short = (calls) => calls.map((call) => [call.name, call.arguments]);
  assert.deepEqual(short(await ask("weather", [weather])), [["get_weather", { city: "Paris" }]]);
  assert.deepEqual(short(await ask("get_time", [{ type: "function", function: time }])), [["get_time", {}]]);
  assert.deepEqual(
    (await ask("two calls", [weather])).map((call) => call.arguments.city),
    ["Paris", "Rome"],
  );
  const messages = [
    { role: "user", content: "weather" },
    { role: "assistant", content: "", tool_calls: [{ name: "get_weather", arguments: { city: "Paris" } }] },
    { role: "tool", name: "get_weather", content: "sun" },
  ];
  assert.equal((await run("chat", { messages, tools: [weather] })).response, "The result is known.");
});

test("a stream of tool calls", async () => {
  const messages = [{ role: "user", content: "two calls" }];
  const parts = await events(await run("chat", { messages, tools: [weather], stream: true }).asResponse());
  const calls = parts.flatMap((part) => part.tool_calls ?? []);
  assert.deepEqual(
    calls.map((call) => call.arguments),
    [{ city: "Paris" }, { city: "Rome" }],
  );
});

test("structured output", async () => {
  const response_format = { type: "json_schema", json_schema: person };
  assert.deepEqual((await run("chat", { prompt: "person", response_format })).response, { name: "Ada", age: 36 });
  const error = await failure(run("chat", { prompt: "no person", response_format }));
  assert.equal(error.status, 500);
  assert.match(error.message, /age/);
});

test("embeddings", async () => {
  const answer = await run("vectors", { text: ["hello", "you"] });
  assert.deepEqual(answer, {
    shape: [2, 3],
    data: [
      [5, 2, 104],
      [3, 2, 121],
    ],
  });
  assert.deepEqual((await run("vectors", { text: "hello" })).shape, [1, 3]);
});

test("errors keep status, code and message", async () => {
  const absent = await failure(run("absent", { prompt: "hi" }));
  assert.ok(absent instanceof Cloudflare.NotFoundError);
  assert.deepEqual([absent.status, absent.errors[0].code], [404, 5007]);
  const unsupported = await failure(run("chat", { prompt: "hi", lora: "x" }));
  assert.ok(unsupported instanceof Cloudflare.BadRequestError);
  assert.match(unsupported.errors[0].message, /lora/);
  const neither = await failure(run("chat", {}));
  assert.match(neither.errors[0].message, /prompt|messages/);
  const raised = await failure(run("chat", { prompt: "raise" }));
  assert.ok(raised instanceof Cloudflare.InternalServerError);
});

test("a failed request of the handler is not repeated", async () => {
  const patient = new Cloudflare({ ...settings, maxRetries: 2 });
  const calls = () => run("raises", { prompt: "calls" });
  const before = await calls();
  assert.equal((await failure(patient.ai.run("raises", { account_id: "x", prompt: "now" }))).status, 500);
  assert.equal(await calls(), before + 1);
});

test("an aborted stream frees the model", { timeout: 30_000 }, async () => {
  const abort = new AbortController();
  const response = await run("chat", { prompt: "slowly 10000", stream: true }, { signal: abort.signal }).asResponse();
  const reader = response.body.getReader();
  await reader.read();
  abort.abort();
  await assert.rejects(
    async () => {
      while (!(await reader.read()).done);
    },
    { name: "AbortError" },
  );
  assert.equal((await run("chat", { prompt: "hello" })).response, "You said: hello");
});
