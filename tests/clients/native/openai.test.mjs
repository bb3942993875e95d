// The official `openai` client of npm, unmodified, against a model with real weights on the native engine.
//
// Run by `tests/functional/native_clients.rs`, which starts the node with SmolLM2-135M-Instruct as `chat` and names its
// address in OMNI_URL.
import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

import { CAPITAL, City, collect, failure, LONG, PARIS, weather } from "./questions.mjs";

const client = new OpenAI({ apiKey: "token", baseURL: `${process.env.OMNI_URL}/v1`, maxRetries: 0 });
const model = "chat";
const user = (content) => [{ role: "user", content }];
const ask = (content, more = {}) =>
  client.chat.completions.create({ model, messages: user(content), temperature: 0, ...more });
const joined = (chunks, choice = 0) =>
  chunks
    .flatMap((chunk) => chunk.choices)
    .filter((part) => part.index === choice)
    .map((part) => part.delta.content ?? "")
    .join("");

test("an answer whole and streamed", async () => {
  const { choices, usage } = await ask(CAPITAL);
  assert.deepEqual([choices[0].message.content, choices[0].finish_reason], [PARIS, "stop"]);
  assert.deepEqual([usage.prompt_tokens, usage.completion_tokens, usage.total_tokens], [16, 8, 24]);
  const chunks = await collect(await ask(CAPITAL, { stream: true, stream_options: { include_usage: true } }));
  assert.equal(joined(chunks), PARIS);
  assert.deepEqual([chunks.at(-1).choices, chunks.at(-1).usage.completion_tokens], [[], 8]);
  const stream = client.chat.completions.stream({ model, messages: user(CAPITAL), temperature: 0 });
  assert.equal(await stream.finalContent(), PARIS);
});

test("limits, stop strings and biases", async () => {
  const cut = (await ask(CAPITAL, { max_completion_tokens: 3 })).choices[0];
  assert.deepEqual([cut.message.content, cut.finish_reason], ["The capital of", "length"]);
  const stopped = (await ask(CAPITAL, { stop: "l of Fr" })).choices[0];
  assert.deepEqual([stopped.message.content, stopped.finish_reason], ["The capita", "stop"]);
  const banned = await ask(CAPITAL, { logit_bias: { 7042: -100 }, max_tokens: 8 });
  assert.doesNotMatch(banned.choices[0].message.content, /Paris/);
});

test("several choices by a seed, with log probabilities", async () => {
  const options = { n: 2, seed: 5, temperature: 1.5, max_tokens: 6, logprobs: true, top_logprobs: 2 };
  const { choices, usage } = await ask(CAPITAL, options);
  const texts = choices.map((choice) => choice.message.content);
  assert.ok(usage.completion_tokens <= 12);
  for (const choice of choices) {
    assert.ok(choice.logprobs.content.every((token) => token.logprob <= 0 && token.top_logprobs.length === 2));
  }
  const chunks = await collect(await ask(CAPITAL, { ...options, stream: true }));
  assert.deepEqual([joined(chunks, 0), joined(chunks, 1)], texts);
  assert.equal((await ask(CAPITAL, { ...options, n: 1, seed: 6 })).choices[0].message.content, texts[1]);
});

test("parsed answers", async () => {
  const response_format = zodResponseFormat(City, "city");
  const options = { model, messages: user("Describe Paris."), temperature: 0, max_tokens: 80, response_format };
  const parsed = (await client.chat.completions.parse(options)).choices[0].message.parsed;
  assert.ok(City.safeParse(parsed).success);
  assert.deepEqual((await client.chat.completions.stream(options).finalMessage()).parsed, parsed);
  const text = { format: zodTextFormat(City, "city") };
  const response = await client.responses.parse({ model, input: "Describe Paris.", temperature: 0, text });
  assert.ok(City.safeParse(response.output_parsed).success);
});

test("a demanded tool call, whole, streamed, and run by the client", async () => {
  const tools = [{ type: "function", function: weather }];
  const options = { tools, tool_choice: "required", max_tokens: 60 };
  const { choices } = await ask("What is the weather in Paris?", options);
  const [call] = choices[0].message.tool_calls;
  assert.deepEqual([choices[0].finish_reason, call.function.name], ["tool_calls", "get_weather"]);
  const stream = client.chat.completions.stream({
    model,
    messages: user("What is the weather in Paris?"),
    temperature: 0,
    ...options,
  });
  assert.equal((await stream.finalMessage()).tool_calls[0].function.arguments, call.function.arguments);
  const asked = [];
  const tool = zodFunction({
    name: "get_weather",
    parameters: z.object({ city: z.enum(["Paris", "Rome"]) }),
    function: async ({ city }) => asked.push(city) && "It is sunny.",
  });
  const runner = client.chat.completions.runTools(
    {
      model,
      messages: user("What is the weather in Paris?"),
      temperature: 0,
      tools: [tool],
      tool_choice: { type: "function", function: { name: "get_weather" } },
      max_tokens: 60,
    },
    { maxChatCompletions: 1 },
  );
  await runner.done();
  assert.equal(asked.length, 1);
});

test("completions and responses", async () => {
  const prompt = "The capital of France is";
  const options = { model, prompt, temperature: 0, max_tokens: 4 };
  const { choices } = await client.completions.create({ ...options, logprobs: 1, echo: false });
  assert.equal(choices[0].logprobs.tokens.join(""), choices[0].text);
  const chunks = await collect(await client.completions.create({ ...options, stream: true }));
  assert.equal(chunks.map((chunk) => chunk.choices[0]?.text ?? "").join(""), choices[0].text);
  const stream = client.responses.stream({ model, input: CAPITAL, temperature: 0 });
  assert.equal((await stream.finalResponse()).output_text, PARIS);
});

test("requests that are wrong are refused", async () => {
  const long = await failure(ask(LONG));
  assert.ok(long instanceof OpenAI.BadRequestError);
  assert.equal(long.code, "context_length_exceeded");
  const bias = await failure(ask(CAPITAL, { logit_bias: { 49152: 1 } }));
  assert.deepEqual([bias.status, bias.param], [400, "logit_bias"]);
});

test("an aborted stream leaves the model to others", { timeout: 30_000 }, async () => {
  const stream = await ask(CAPITAL, { stream: true, max_tokens: 4000, ignore_eos: true });
  for await (const _ of stream) break;
  stream.controller.abort();
  assert.equal((await ask(CAPITAL)).choices[0].message.content, PARIS);
});
