// The official `cloudflare` client of npm, unmodified, against a node: queued requests.
//
// Run by `tests/functional/jobs.rs`, which starts the node and its models and names its address in OMNI_URL.
import assert from "node:assert/strict";
import { test } from "node:test";

import Cloudflare from "cloudflare";

const client = new Cloudflare({ apiToken: "token", baseURL: `${process.env.OMNI_URL}/client/v4`, maxRetries: 0 });
const run = (body, query) => client.ai.run("chat", { account_id: "x", ...body }, { query });

test("queued requests have their answers", async () => {
  const requests = [{ prompt: "say one", external_reference: "r1" }, { prompt: "say two" }];
  const queued = await run({ requests }, { queueRequest: "true" });
  assert.deepEqual([queued.status, queued.model], ["queued", "chat"]);
  const deadline = Date.now() + 60_000;
  let answer = queued;
  while (!answer.responses) {
    assert.ok(Date.now() < deadline, answer.status);
    await new Promise((wake) => setTimeout(wake, 50));
    answer = await run({ request_id: queued.request_id }, {});
  }
  const said = answer.responses.map(({ id, success, external_reference: reference, result }) => [id, success, reference, result.response]);
  assert.deepEqual(said, [[0, true, "r1", "say one"], [1, true, null, "say two"]]);
  assert.equal(answer.usage.total_tokens, 12);
});
