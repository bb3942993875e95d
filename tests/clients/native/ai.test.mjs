// The AI SDK (`ai`) with its providers of OpenAI, Anthropic, compatible servers and Workers AI, unmodified, against a
// model with real weights on the native engine.
//
// Run by `tests/functional/native_clients.rs`, which starts the node with SmolLM2-135M-Instruct as `chat` and names its
// address in OMNI_URL.
import assert from "node:assert/strict";
import { suite, test } from "node:test";

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, isStepCount, jsonSchema, Output, streamText, tool } from "ai";
import { createWorkersAI } from "workers-ai-provider";

import { CAPITAL, City, collect, failure, LONG, PARIS, weather } from "./questions.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false;

const URL = process.env.OMNI_URL;
const settings = { apiKey: "token", baseURL: `${URL}/v1` };
const compatible = { ...settings, name: "node", includeUsage: true, supportsStructuredOutputs: true };
const workers = {
  accountId: "account",
  apiKey: "token",
  fetch: (url, init) => fetch(url.replace("https://api.cloudflare.com", URL), init),
};
const PROVIDERS = {
  responses: createOpenAI(settings)("chat"),
  "chat completions": createOpenAI(settings).chat("chat"),
  "compatible servers": createOpenAICompatible(compatible)("chat"),
  messages: createAnthropic(settings)("chat"),
  "Workers AI": createWorkersAI(workers)("chat"),
};

for (const [name, model] of Object.entries(PROVIDERS)) {
  const options = { model, temperature: 0, maxOutputTokens: 80, maxRetries: 0 };

  suite(name, () => {
    test("an answer whole and streamed", async () => {
      const { text, finishReason, usage } = await generateText({ ...options, prompt: CAPITAL });
      assert.deepEqual([text, finishReason, usage.outputTokens], [PARIS, "stop", 8]);
      const streamed = streamText({ ...options, prompt: CAPITAL });
      assert.equal((await collect(streamed.textStream)).join(""), PARIS);
      assert.equal((await streamed.usage).outputTokens, 8);
      const cut = await generateText({ ...options, prompt: CAPITAL, maxOutputTokens: 3 });
      assert.deepEqual([cut.text, cut.finishReason], ["The capital of", "length"]);
    });

    test("an object", async () => {
      const { output } = await generateText({
        ...options,
        prompt: "Describe Paris.",
        output: Output.object({ schema: City }),
      });
      assert.ok(City.safeParse(output).success);
    });

    test("a demanded tool call", async () => {
      const asked = [];
      const get_weather = tool({
        description: weather.description,
        inputSchema: jsonSchema(weather.parameters),
        execute: async (input) => asked.push(input.city),
      });
      const { toolCalls } = await generateText({
        ...options,
        prompt: "What is the weather in Paris?",
        tools: { get_weather },
        toolChoice: "required",
        stopWhen: isStepCount(1),
      });
      assert.equal(toolCalls[0].toolName, "get_weather");
      assert.ok(["Paris", "Rome"].includes(asked[0]));
    });

    test("a prompt that is too long", async () => {
      assert.equal((await failure(generateText({ ...options, prompt: LONG }))).statusCode, 400);
    });
  });
}
