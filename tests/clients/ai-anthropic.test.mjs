// The AI SDK (`ai`) with `@ai-sdk/anthropic`, unmodified, against a node.
//
// Run by `tests/functional/clients.rs`, which starts the node and its models and names its address in OMNI_URL.
import { suite } from "node:test";

import { createAnthropic } from "@ai-sdk/anthropic";

import { absent, reasoning, textGeneration, URL } from "./ai-behaviours.mjs";

const node = createAnthropic({ apiKey: "token", baseURL: `${URL}/v1` });

suite("anthropic", () => {
  textGeneration(node("chat"));
  reasoning(node("chat"));
  absent(node("absent"));
});
