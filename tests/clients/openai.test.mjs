// The official `openai` client of npm, unmodified, against a node: chat, tools, structured output, embeddings,
// responses, recordings, speech, images, errors, aborted streams.
//
// Run by `tests/functional/clients.rs`, which starts the node and its models and names its address in OMNI_URL.
import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI, { toFile } from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { Stream } from "openai/streaming";
import { z } from "zod";

const client = new OpenAI({ apiKey: "token", baseURL: `${process.env.OMNI_URL}/v1`, maxRetries: 0 });
const model = "chat";
const user = (content) => [{ role: "user", content }];
const ask = (content, more = {}) => client.chat.completions.create({ model, messages: user(content), ...more });

const city = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const weather = {
  type: "function",
  function: { name: "get_weather", description: "Weather of a city", parameters: city },
};
const time = { type: "function", function: { name: "get_time", description: "The time" } };
const Person = z.object({ name: z.string(), age: z.number().int() });
const pixel =
  "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

async function collect(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}

test("models are listed", async () => {
  const names = (await collect(client.models.list())).map((entry) => entry.id);
  assert.deepEqual(
    names.filter((name) => ["chat", "vectors"].includes(name)),
    ["chat", "vectors"],
  );
  assert.equal((await client.models.retrieve("chat")).id, "chat");
  await assert.rejects(client.models.retrieve("absent"), OpenAI.NotFoundError);
});

test("a chat completion", async () => {
  const { data, response, request_id } = await ask("hello").withResponse();
  assert.equal(data.choices[0].message.content, "You said: hello");
  assert.equal(data.choices[0].finish_reason, "stop");
  assert.equal(data.usage.total_tokens, data.usage.prompt_tokens + data.usage.completion_tokens);
  assert.equal(response.headers.get("x-request-id"), request_id);
});

test("a streamed chat completion with usage", async () => {
  const chunks = await collect(await ask("count 5", { stream: true, stream_options: { include_usage: true } }));
  assert.equal(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""), "1 2 3 4 5");
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.equal(chunks.at(-1).usage.completion_tokens, 5);
});

test("the stream helper", async () => {
  const stream = client.chat.completions.stream({ model, messages: user("count 3") });
  const deltas = [];
  stream.on("content", (delta) => deltas.push(delta));
  assert.equal(await stream.finalContent(), "1 2 3");
  assert.deepEqual(deltas, ["1", " 2", " 3"]);
});

test("a stream through a proxy of the caller", async () => {
  const stream = await ask("count 3", { stream: true });
  const chunks = await collect(Stream.fromReadableStream(stream.toReadableStream(), new AbortController()));
  assert.equal(chunks.map((chunk) => chunk.choices[0].delta.content ?? "").join(""), "1 2 3");
});

test("conversations keep their roles and parts", async () => {
  const messages = [
    { role: "developer", content: "Be short." },
    { role: "user", content: "first" },
    {
      role: "assistant",
      content: null,
      refusal: null,
      tool_calls: [{ id: "c1", type: "function", function: { name: "get_time", arguments: "" } }],
    },
    { role: "tool", tool_call_id: "c1", content: [{ type: "text", text: "noon" }] },
    { role: "assistant", content: [{ type: "text", text: "It is noon." }], name: "helper" },
    {
      role: "user",
      content: [
        { type: "text", text: "hel" },
        { type: "text", text: "lo" },
      ],
    },
  ];
  const answer = await client.chat.completions.create({ model, messages, tools: [time] });
  assert.equal(answer.choices[0].message.content, "The result is known.");
});

test("a tool call and its result", async () => {
  const { choices } = await ask("weather", { tools: [weather] });
  const [call] = choices[0].message.tool_calls;
  assert.equal(choices[0].finish_reason, "tool_calls");
  assert.deepEqual(JSON.parse(call.function.arguments), { city: "Paris" });
  const messages = [...user("weather"), choices[0].message, { role: "tool", tool_call_id: call.id, content: "sun" }];
  const answer = await client.chat.completions.create({ model, messages, tools: [weather] });
  assert.equal(answer.choices[0].message.content, "The result is known.");
});

test("a tool without arguments gets an empty object", async () => {
  const { choices } = await ask("get_time", { tools: [weather, time] });
  assert.deepEqual(
    choices[0].message.tool_calls.map((call) => [call.function.name, call.function.arguments]),
    [["get_time", "{}"]],
  );
});

test("choices of tools", async () => {
  const named = await ask("hello", {
    tools: [weather, time],
    tool_choice: { type: "function", function: { name: "get_time" } },
  });
  assert.equal(named.choices[0].message.tool_calls[0].function.name, "get_time");
  const required = await ask("hello", { tools: [weather], tool_choice: "required", parallel_tool_calls: false });
  assert.equal(required.choices[0].message.tool_calls[0].function.name, "get_weather");
  const none = await ask("hello", { tools: [weather], tool_choice: "none" });
  assert.equal(none.choices[0].message.content, "You said: hello");
});

test("several streamed tool calls", async () => {
  const stream = client.chat.completions.stream({ model, messages: user("two calls"), tools: [weather] });
  const calls = (await stream.finalMessage()).tool_calls;
  assert.deepEqual(
    calls.map((call) => JSON.parse(call.function.arguments)),
    [{ city: "Paris" }, { city: "Rome" }],
  );
  assert.equal(new Set(calls.map((call) => call.id)).size, 2);
  assert.equal((await stream.finalChatCompletion()).choices[0].finish_reason, "tool_calls");
});

test("tools are run by the client", async () => {
  const asked = [];
  const tool = zodFunction({
    name: "get_weather",
    parameters: z.object({ city: z.string() }),
    function: async ({ city }) => {
      asked.push(city);
      return { sky: "clear" };
    },
  });
  const runner = client.chat.completions.runTools({ model, messages: user("weather"), tools: [tool] });
  assert.equal(await runner.finalContent(), "The result is known.");
  assert.deepEqual(asked, ["Paris"]);
  const streamed = client.chat.completions.runTools({ model, stream: true, messages: user("weather"), tools: [tool] });
  assert.equal(await streamed.finalContent(), "The result is known.");
});

test("parsed answers", async () => {
  const response_format = zodResponseFormat(Person, "person");
  const parsed = await client.chat.completions.parse({ model, messages: user("person"), response_format });
  assert.deepEqual(parsed.choices[0].message.parsed, { name: "Ada", age: 36 });
  const stream = client.chat.completions.stream({ model, messages: user("person"), response_format });
  assert.deepEqual((await stream.finalMessage()).parsed, { name: "Ada", age: 36 });
  const failed = client.chat.completions.parse({ model, messages: user("no person"), response_format });
  await assert.rejects(failed, (error) => error instanceof OpenAI.InternalServerError && /\/age/.test(error.message));
});

test("reasoning is apart", async () => {
  const { choices } = await ask("think");
  assert.deepEqual(
    [choices[0].message.reasoning_content.trim(), choices[0].message.content.trim()],
    ["Let me see.", "Answer"],
  );
  const chunks = await collect(await ask("think", { stream: true }));
  assert.equal(
    chunks
      .map((chunk) => chunk.choices[0]?.delta.reasoning_content ?? "")
      .join("")
      .trim(),
    "Let me see.",
  );
});

test("several choices, log probabilities and limits", async () => {
  const { choices } = await ask("hello", { n: 2, logprobs: true, top_logprobs: 1, seed: 1 });
  assert.deepEqual(
    choices.map((choice) => choice.index),
    [0, 1],
  );
  assert.equal(choices[1].logprobs.content.map((token) => token.token).join(""), "You said: hello");
  const stream = client.chat.completions.stream({ model, messages: user("count 3"), n: 2 });
  assert.deepEqual(
    (await stream.finalChatCompletion()).choices.map((choice) => choice.message.content),
    ["1 2 3", "1 2 3"],
  );
  const stopped = await ask("count 9", { stop: " 4" });
  assert.deepEqual([stopped.choices[0].message.content, stopped.choices[0].finish_reason], ["1 2 3", "stop"]);
  const cut = await ask("count 9", { max_completion_tokens: 2 });
  assert.deepEqual([cut.choices[0].message.content, cut.choices[0].finish_reason], ["1 2", "length"]);
});

test("an image is refused by a model without images", async () => {
  const content = [
    { type: "text", text: "What is this?" },
    { type: "image_url", image_url: { url: pixel } },
  ];
  await assert.rejects(
    ask(content),
    (error) => error instanceof OpenAI.BadRequestError && /image/i.test(error.message),
  );
});

test("completions of texts", async () => {
  const answer = await client.completions.create({ model, prompt: ["one", "two"], echo: true });
  assert.deepEqual(
    answer.choices.map((choice) => choice.text),
    ["oneYou said: one", "twoYou said: two"],
  );
  const chunks = await collect(await client.completions.create({ model, prompt: "one", stream: true }));
  assert.equal(chunks.map((chunk) => chunk.choices[0]?.text ?? "").join(""), "You said: one");
});

test("embeddings as base64, as numbers, of tokens", async () => {
  const embed = async (input, more = {}) =>
    (await client.embeddings.create({ model: "vectors", input, ...more })).data.map((entry) =>
      Array.from(entry.embedding),
    );
  assert.deepEqual(await embed(["hello", "you"]), [
    [5, 2, 104],
    [3, 2, 121],
  ]);
  assert.deepEqual(await embed("hello", { encoding_format: "float" }), [[5, 2, 104]]);
  assert.deepEqual(await embed([[7, 8]]), [[2, 0, 7]]);
});

test("recordings, speech and images", async () => {
  const file = await toFile(Buffer.from("RIFF0000WAVE"), "a.wav");
  const heard = await client.audio.transcriptions.create({ model: "hear", file, language: "en" });
  assert.equal(heard.text, "12 bytes of b'RIFF' in en");
  const captions = await client.audio.transcriptions.create({ model: "hear", file, response_format: "vtt" });
  assert.ok(captions.startsWith("WEBVTT\n\n00:00:00.000 --> 00:00:01.500"));
  const said = await client.audio.speech.create({ model: "say", voice: "ann", input: "moo and baa" });
  assert.deepEqual([said.headers.get("content-type"), await said.text()], ["audio/mpeg", "moo and baa ann mp3 1.0"]);
  const drawn = await client.images.generate({ model: "draw", prompt: "a cow", size: "512x512", n: 2 });
  assert.deepEqual(
    drawn.data.map((image) => image.b64_json),
    Array(2).fill("iVBORw0KGgo1MTJ4NTEyIGEgY293"),
  );
});

test("a response", async () => {
  const response = await client.responses.create({ model, input: "hello", instructions: "Be short." });
  assert.deepEqual([response.output_text, response.status], ["You said: hello", "completed"]);
  const stream = client.responses.stream({ model, input: "count 4" });
  const types = (await collect(stream)).map((event) => event.type);
  assert.deepEqual([types[0], types.at(-1)], ["response.created", "response.completed"]);
  assert.equal((await stream.finalResponse()).output_text, "1 2 3 4");
});

test("a tool call of a response and its result", async () => {
  const tools = [{ type: "function", strict: false, ...weather.function }];
  const first = await client.responses.create({ model, input: "two calls", tools });
  const calls = first.output.filter((item) => item.type === "function_call");
  assert.deepEqual(
    calls.map((call) => JSON.parse(call.arguments)),
    [{ city: "Paris" }, { city: "Rome" }],
  );
  const results = calls.map((call) => ({ type: "function_call_output", call_id: call.call_id, output: "sun" }));
  const input = [{ role: "user", content: "two calls" }, ...first.output, ...results];
  assert.equal((await client.responses.create({ model, input, tools })).output_text, "The result is known.");
});

test("a parsed response", async () => {
  const text = { format: zodTextFormat(Person, "person") };
  const response = await client.responses.parse({ model, input: "person", text });
  assert.deepEqual(response.output_parsed, { name: "Ada", age: 36 });
  const stream = client.responses.stream({ model, input: "person", text });
  assert.deepEqual((await stream.finalResponse()).output_parsed, { name: "Ada", age: 36 });
});

test("reasoning of a response is an item of the next request", async () => {
  const first = await client.responses.create({ model, input: "think", reasoning: { effort: "low" } });
  assert.deepEqual(
    first.output.map((item) => item.type),
    ["reasoning", "message"],
  );
  const input = [{ role: "user", content: "think" }, ...first.output, { role: "user", content: "hello" }];
  assert.equal((await client.responses.create({ model, input })).output_text, "You said: hello");
});

test("errors keep status, code, parameter and message", async () => {
  const failure = (promise) =>
    promise.then(
      () => assert.fail("no error"),
      (error) => error,
    );
  const absent = await failure(client.chat.completions.create({ model: "absent", messages: user("hello") }));
  assert.ok(absent instanceof OpenAI.NotFoundError);
  assert.deepEqual([absent.status, absent.code], [404, "model_not_found"]);
  const unsupported = await failure(ask("hello", { logit_bias: { 5: 3 } }));
  assert.deepEqual(
    [unsupported.status, unsupported.code, unsupported.param],
    [400, "unsupported_parameter", "logit_bias"],
  );
  const unknown = await failure(ask("hello", { max_token: 5 }));
  assert.deepEqual([unknown.status, unknown.param], [400, "max_token"]);
  assert.match(unknown.message, /max_tokens/);
  const empty = await failure(client.chat.completions.create({ model, messages: [] }));
  assert.deepEqual([empty.status, empty.param], [400, "messages"]);
  assert.ok((await failure(ask("raise"))) instanceof OpenAI.InternalServerError);
});

test("a parameter that is null asks for nothing", async () => {
  const nothing = { audio: null, functions: null, prediction: null, stop: null, tools: null, response_format: null };
  assert.equal((await ask("hello", nothing)).choices[0].message.content, "You said: hello");
  const response = await client.responses.create({ model, input: "hello", previous_response_id: null, prompt: null });
  assert.equal(response.output_text, "You said: hello");
});

test("a failure in mid-stream is raised", async () => {
  await assert.rejects(async () => collect(await ask("raise late", { stream: true })), OpenAI.APIError);
  const response = client.responses.stream({ model, input: "raise late" });
  await assert.rejects(response.finalResponse());
});

test("an aborted stream frees the model", { timeout: 30_000 }, async () => {
  const stream = await ask("slowly 10000", { stream: true }); // for more than eight minutes, unless it is cancelled
  for await (const chunk of stream) if (chunk.choices[0]?.delta.content) break;
  assert.ok(stream.controller.signal.aborted);
  assert.equal((await ask("hello")).choices[0].message.content, "You said: hello");
});

test("an aborted request without a stream frees the model", { timeout: 30_000 }, async () => {
  const signal = AbortSignal.timeout(500);
  await assert.rejects(
    client.chat.completions.create({ model, messages: user("slowly 10000") }, { signal }),
    OpenAI.APIUserAbortError,
  );
  assert.equal((await ask("hello")).choices[0].message.content, "You said: hello");
});
