// The AI SDK (`ai`) with `workers-ai-provider`, unmodified, against a node: its address is built in, and `fetch` takes
// each request to the node instead.
//
// Run by `tests/functional/clients.rs`, which starts the node and its models and names its address in OMNI_URL.
import assert from "node:assert/strict";
import { suite, test } from "node:test";

import { generateImage, generateSpeech, generateText, rerank, transcribe } from "ai";
import { createWorkersAI } from "workers-ai-provider";

import { absent, embeddings, reasoning, textGeneration, URL } from "./ai-behaviours.mjs";

const sent = [];
const node = createWorkersAI({
  accountId: "account",
  apiKey: "token",
  fetch: (url, init) => {
    sent.push({ path: url.replace("https://api.cloudflare.com", ""), ...init });
    return fetch(url.replace("https://api.cloudflare.com", URL), init);
  },
});

suite("workers-ai-provider", () => {
  // Of an error in mid-stream the provider reads nothing.
  textGeneration(node("@cf/meta/chat"), { has: { stop: false, lateErrors: false } });
  reasoning(node("@cf/meta/chat"));
  embeddings(node.textEmbedding("@cf/meta/vectors"));
  absent(node("absent"));

  test("each request is sent once", async () => {
    sent.length = 0;
    const { text } = await generateText({ model: node("chat"), prompt: "hello" });
    assert.equal(text, "You said: hello");
    assert.deepEqual(
      sent.map((request) => request.path),
      ["/client/v4/accounts/account/ai/run/chat"],
    );
  });

  test("settings of a session and of reasoning are accepted", async () => {
    const model = node("@cf/meta/chat", {
      sessionAffinity: "s1",
      reasoning_effort: null,
      chat_template_kwargs: { enable_thinking: false },
    });
    assert.equal(
      (await generateText({ model, prompt: "hello", reasoning: "low", maxRetries: 0 })).text,
      "You said: hello",
    );
  });

  test("recordings, speech, images and documents", async () => {
    const audio = new TextEncoder().encode("RIFF0000WAVE");
    const heard = await transcribe({ model: node.transcription("hear", { language: "en" }), audio });
    assert.equal(heard.text, "12 bytes of b'RIFF' in en");
    assert.deepEqual(heard.segments, [{ text: heard.text, startSecond: 0, endSecond: 1.5 }]);
    const said = await generateSpeech({ model: node.speech("say"), text: "moo", voice: "ann", speed: 1.5 });
    assert.equal(new TextDecoder().decode(said.audio.uint8Array), "moo ann None 1.5");
    const drawn = await generateImage({ model: node.image("draw"), prompt: "a cow", size: "64x32", n: 2 });
    assert.equal(drawn.images.length, 2);
    assert.equal(drawn.image.base64, "iVBORw0KGgo2NHgzMiBhIGNvdw==");
    const ranked = await rerank({ model: node.reranking("rank"), query: "a", documents: ["moo", "baa"], topN: 1 });
    assert.deepEqual(ranked.ranking, [{ originalIndex: 1, score: 2, document: "baa" }]);
  });
});
