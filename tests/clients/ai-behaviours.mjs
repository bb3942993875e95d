// Uses of the AI SDK (`ai`) that must work with every provider: text, tools, structured output, embeddings, images,
// errors, aborted streams.
import assert from "node:assert/strict";
import { test } from "node:test";

import {
  APICallError,
  embedMany,
  generateObject,
  generateText,
  isStepCount,
  jsonSchema,
  Output,
  streamObject,
  streamText,
  tool,
} from "ai";
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false;

export const URL = process.env.OMNI_URL;
export const Person = z.object({ name: z.string(), age: z.number().int() });
const ada = { name: "Ada", age: 36 };
export const pixel = Buffer.from(
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
  "base64",
);

/** Tools by name; `asked` collects the arguments with which they were run. */
export function toolbox() {
  const asked = [];
  const run = (answer) => async (input) => {
    asked.push(input);
    return answer;
  };
  const get_weather = tool({
    description: "Weather",
    inputSchema: z.object({ city: z.string() }),
    execute: run({ sky: "clear" }),
  });
  const get_time = tool({
    description: "Time",
    inputSchema: jsonSchema({ type: "object", properties: {} }),
    execute: run("noon"),
  });
  return { asked, tools: { get_weather, get_time } };
}

/** The error of a call that must fail, as its caller gets it. */
export async function failure(promise) {
  return promise.then(
    () => assert.fail("no error"),
    (error) => error,
  );
}

/** All parts of a stream, and the error it ended with. */
export async function drain(options) {
  let failed;
  const result = streamText({ maxRetries: 0, onError: ({ error }) => (failed = error), ...options });
  const parts = [];
  for await (const part of result.fullStream) parts.push(part);
  const joined = (type) =>
    parts
      .filter((part) => part.type === type)
      .map((part) => part.text)
      .join("");
  return { result, parts, failed, text: joined("text-delta"), reasoning: joined("reasoning-delta") };
}

/** The tests of generated text. `has`: what the provider itself can do. */
export function textGeneration(model, { has = {}, options = {} } = {}) {
  const can = { stop: true, turns: true, lateErrors: true, ...has };
  const ask = (prompt, more = {}) => generateText({ model, prompt, maxRetries: 0, ...options, ...more });
  const stream = (prompt, more = {}) => drain({ model, prompt, ...options, ...more });

  test("text with usage", async () => {
    const { text, finishReason, usage } = await ask("hello", { system: "Be short.", temperature: 0.5, topP: 0.9 });
    assert.deepEqual([text, finishReason], ["You said: hello", "stop"]);
    assert.ok(usage.inputTokens > 0);
    assert.ok(usage.outputTokens > 0);
  });

  test("a stream of text with usage", async () => {
    const { result, text, failed } = await stream("count 5");
    assert.deepEqual([text, failed, await result.finishReason], ["1 2 3 4 5", undefined, "stop"]);
    assert.equal((await result.usage).outputTokens, 5);
  });

  test("limits of the answer", async () => {
    const cut = await ask("count 9", { maxOutputTokens: 2 });
    assert.deepEqual([cut.text, cut.finishReason], ["1 2", "length"]);
    if (!can.stop) return;
    const stopped = await ask("count 9", { stopSequences: [" 4"] });
    assert.deepEqual([stopped.text, stopped.finishReason], ["1 2 3", "stop"]);
  });

  test("tools are run until the answer", async () => {
    const { asked, tools } = toolbox();
    const { text, steps } = await ask("weather", { tools, stopWhen: isStepCount(4) });
    assert.deepEqual([text, asked, steps.length], ["The result is known.", [{ city: "Paris" }], 2]);
    assert.equal(steps[0].finishReason, "tool-calls");
  });

  test("several streamed tool calls are run until the answer", async () => {
    const { asked, tools } = toolbox();
    const { text, failed } = await stream("two calls", { tools, stopWhen: isStepCount(4) });
    assert.deepEqual([text, failed, asked], ["The result is known.", undefined, [{ city: "Paris" }, { city: "Rome" }]]);
  });

  test("a tool without arguments", async () => {
    for (const use of [ask, stream]) {
      const { asked, tools } = toolbox();
      await use("get_time", { tools, stopWhen: isStepCount(1) });
      assert.deepEqual(asked, [{}]);
    }
  });

  test("choices of tools", async () => {
    const { tools } = toolbox();
    const called = async (toolChoice) =>
      (await ask("hello", { tools, toolChoice, stopWhen: isStepCount(1) })).toolCalls.map((call) => call.toolName);
    assert.deepEqual(await called("required"), ["get_weather"]);
    assert.deepEqual(await called({ type: "tool", toolName: "get_time" }), ["get_time"]);
    assert.deepEqual(await called("none"), []);
  });

  test("a failed tool is a result like others", async () => {
    const get_weather = tool({
      inputSchema: z.object({ city: z.string() }),
      execute: async () => {
        throw new Error("no network");
      },
    });
    const { text } = await ask("weather", { tools: { get_weather }, stopWhen: isStepCount(3) });
    assert.equal(text, "The result is known.");
  });

  test("objects", async () => {
    assert.deepEqual(
      (await generateObject({ model, prompt: "person", schema: Person, maxRetries: 0, ...options })).object,
      ada,
    );
    const streamed = streamObject({ model, prompt: "person", schema: Person, maxRetries: 0, ...options });
    const partial = [];
    for await (const part of streamed.partialObjectStream) partial.push(part);
    assert.deepEqual([partial.at(-1), await streamed.object], [ada, ada]);
    assert.deepEqual(
      (await ask("person", { output: Output.object({ schema: Person, name: "person", description: "A person" }) }))
        .output,
      ada,
    );
    const array = await ask("hello", { output: Output.array({ element: Person }) });
    assert.deepEqual(array.output, []);
  });

  test("an object that does not fit is an error", async () => {
    const error = await failure(
      generateObject({ model, prompt: "no person", schema: Person, maxRetries: 0, ...options }),
    );
    assert.match(error.message, /age|schema/); // the node's, or the client's
  });

  if (can.turns) conversation(model, options);

  test("an image is refused by a model without images", async () => {
    const content = [
      { type: "text", text: "What is this?" },
      { type: "file", mediaType: "image/png", data: pixel },
    ];
    const error = await failure(
      generateText({ model, messages: [{ role: "user", content }], maxRetries: 0, ...options }),
    );
    assert.equal(error.statusCode, 400);
    assert.match(error.message, /image/i);
  });

  test("a handler that raises is an error, before and in a stream", async () => {
    const error = await failure(ask("raise"));
    assert.ok(APICallError.isInstance(error));
    assert.equal(error.statusCode, 500);
    assert.ok((await stream("raise")).failed);
    const late = await stream("raise late");
    if (can.lateErrors) assert.ok(late.failed, "the failure was not noticed");
  });

  test("an aborted stream frees the model", { timeout: 30_000 }, async () => {
    const abort = new AbortController();
    const result = streamText({ model, prompt: "slowly 10000", abortSignal: abort.signal, maxRetries: 0, ...options });
    let aborted = false;
    for await (const part of result.fullStream) {
      if (part.type === "text-delta") abort.abort();
      aborted ||= part.type === "abort";
    }
    assert.ok(aborted);
    assert.equal((await ask("hello")).text, "You said: hello");
  });

  test("odd text comes back as it was", async () => {
    const text = 'héllo \u{1F600} \u2028 \u0000 "quoted" \\ </script> ﷽';
    assert.equal((await ask(text)).text, `You said: ${text}`);
    assert.equal((await stream(text)).text, `You said: ${text}`);
  });
}

/** The test of a second request with the answer to the first. */
export function conversation(model, options = {}) {
  test("a conversation of several turns", async () => {
    const messages = [{ role: "user", content: "think" }];
    const first = await generateText({ model, messages, maxRetries: 0, ...options });
    messages.push(...first.response.messages, { role: "user", content: "hello again" });
    assert.equal((await generateText({ model, messages, maxRetries: 0, ...options })).text, "You said: hello again");
  });
}

/** The test of reasoning beside the text. */
export function reasoning(model, options = {}) {
  test("reasoning is apart", async () => {
    const whole = await generateText({ model, prompt: "think", maxRetries: 0, ...options });
    assert.deepEqual([whole.reasoningText.trim(), whole.text.trim()], ["Let me see.", "Answer"]);
    const streamed = await drain({ model, prompt: "think", ...options });
    assert.deepEqual([streamed.reasoning.trim(), streamed.text.trim()], ["Let me see.", "Answer"]);
  });
}

/** The tests of embeddings. */
export function embeddings(model) {
  test("embeddings", async () => {
    const { embeddings } = await embedMany({ model, values: ["hello", "you"], maxRetries: 0 });
    assert.deepEqual(embeddings, [
      [5, 2, 104],
      [3, 2, 121],
    ]);
  });

  test("more embeddings than fit in one call", async () => {
    const values = Array.from({ length: 5000 }, (_, at) => "x".repeat(1 + (at % 7)));
    const { embeddings } = await embedMany({ model, values, maxRetries: 0 });
    assert.deepEqual(
      embeddings.map(([length]) => length),
      values.map((value) => value.length),
    );
  });
}

/** The test of the error for a model that does not exist. */
export function absent(model) {
  test("a model that does not exist", async () => {
    const error = await failure(generateText({ model, prompt: "hello", maxRetries: 0 }));
    assert.ok(APICallError.isInstance(error));
    assert.deepEqual([error.statusCode, error.isRetryable], [404, false]);
    assert.match(error.message, /no such model/);
  });
}
