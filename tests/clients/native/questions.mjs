// Questions to SmolLM2-135M-Instruct of which it is sure, and what its engine can make it do.
import assert from "node:assert/strict";

import { z } from "zod";

export const CAPITAL = "What is the capital of France?";
export const PARIS = "The capital of France is Paris.";
/** Prompt that is longer than the model's context. */
export const LONG = "word ".repeat(9000);
export const City = z.object({ capital: z.boolean(), size: z.enum(["small", "large"]) });
/** Function whose arguments are one of two. */
export const weather = {
  name: "get_weather",
  description: "Weather",
  parameters: {
    type: "object",
    properties: { city: { enum: ["Paris", "Rome"] } },
    required: ["city"],
    additionalProperties: false,
  },
};

/** All items of a stream. */
export async function collect(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}

/** The error of a call that must fail, as its caller gets it. */
export async function failure(promise) {
  return promise.then(
    () => assert.fail("no error"),
    (error) => error,
  );
}
