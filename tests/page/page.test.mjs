// The node's page: what anyone sees, what an administrator can do, by keyboard, on a phone, in dark and light.
// Elements are found by role and name, as assistive technology finds them.
import assert from "node:assert/strict";
import { test } from "node:test";

import { ADMIN, assertAccessible, assertFits, screenshot, signIn, TOKEN, withPage } from "./browser.mjs";

const row = (page, model) => page.getByRole("row").filter({ has: page.getByRole("rowheader", { name: model, exact: true }) });

async function open(page, model) {
  await page.getByRole("link", { name: model, exact: true }).click();
  const section = page.getByRole("region", { name: `Model ${model}` });
  await section.waitFor();
  return section;
}

test("files are small, cached, and under a strict policy", async () => {
  const answer = await fetch(ADMIN);
  assert.match(answer.headers.get("content-security-policy"), /^default-src 'self'/);
  assert.doesNotMatch(answer.headers.get("content-security-policy"), /unsafe/);
  assert.equal(answer.headers.get("x-content-type-options"), "nosniff");
  const html = await answer.text();
  assert.doesNotMatch(html, /<script(?![^>]*src=)|<style| on[a-z]+=| style=/);
  const again = await fetch(ADMIN, { headers: { "if-none-match": answer.headers.get("etag") } });
  assert.equal(again.status, 304);
});

test("anyone sees facts, and no text of a model", () =>
  withPage({}, async (page) => {
    for (const name of ["Node", "GPU memory now", "Timeline", "Models", "Jobs", "Events"]) {
      await page.getByRole("heading", { name, exact: true }).waitFor();
    }
    await row(page, "echo").getByText("stopped").waitFor();
    await row(page, "broken").getByText("failed").waitFor();
    const section = await open(page, "broken");
    await section.getByText("need a token of role admin").waitFor();
    assert.equal(await section.getByRole("button", { name: "Stop" }).count(), 0);
    assert.equal(await page.getByText("as the model says").count(), 0);
    const feed = (await fetch(`${ADMIN}/page/events`)).body.getReader();
    const state = new TextDecoder().decode((await feed.read()).value);
    await feed.cancel();
    assert.match(state, /"broken"/);
    assert.doesNotMatch(state, /as the model says/);
    await assertAccessible(page, "read only");
    await screenshot(page, "page-light");
  }));

test("nothing changes without a token of role admin", async () => {
  const post = (path, token) => {
    const headers = { "content-type": "application/json", ...(token && { authorization: `Bearer ${token}` }) };
    return fetch(`${ADMIN}${path}`, { method: "POST", headers, body: "{}" });
  };
  for (const path of ["/ai/run/echo", "/v1/chat/completions", "/control/v1/models/echo/start", "/control/v1/jobs/batch_1/cancel"]) {
    assert.equal((await post(path)).status, 401, path);
    assert.equal((await post(path, "wrong")).status, 401, path);
    assert.equal((await post(path, "two")).status, 403, path);
  }
  assert.equal((await fetch(`${ADMIN}/control/v1/models/echo/logs`)).status, 401);
  // The node itself is not commanded from here, and requests do not pass by the tokens.
  for (const path of ["/control/v1/node/upgrade", "/control/v1/models/echo/run"]) {
    assert.equal((await post(path, TOKEN)).status, 404, path);
  }
  assert.equal((await post("/ai/run/echo", TOKEN)).status, 200);
});

test("a wrong token is refused in words", () =>
  withPage(
    {},
    async (page) => {
      await page.getByRole("button", { name: "Sign in" }).click();
      const dialog = page.getByRole("dialog", { name: "Sign in" });
      for (const [token, said] of [["nonsense", "none of this node's"], ["two", "not the role admin"]]) {
        await dialog.getByLabel("Token").fill(token);
        await dialog.getByRole("button", { name: "Sign in" }).click();
        await dialog.getByRole("alert").filter({ hasText: said }).waitFor();
      }
      await assertAccessible(page, "dialog");
      await page.keyboard.press("Escape");
      await page.getByText("Read only", { exact: true }).waitFor();
    },
    ["status of 401"],
  ));

test("an administrator reads reasons, starts and stops a model", () =>
  withPage({}, async (page) => {
    await signIn(page);
    const broken = await open(page, "broken");
    await broken.getByText("as the model says").first().waitFor();
    const events = page.getByRole("list", { name: "Events" });
    await page.getByLabel("Failures only").check();
    await events.getByRole("listitem").filter({ hasText: "broken cannot serve" }).getByText("as the model says").first().waitFor();
    await page.getByLabel("Failures only").uncheck();
    const echo = await open(page, "echo");
    await echo.getByRole("button", { name: "Start", exact: true }).click();
    await echo.getByRole("status").filter({ hasText: "Start: done" }).waitFor();
    await row(page, "echo").getByText("ready").first().waitFor();
    await echo.getByRole("list", { name: "Instances" }).getByText("ready").first().waitFor();
    await echo.getByRole("button", { name: "Stop", exact: true }).click();
    await row(page, "echo").getByText("stopped by hand").waitFor();
    await page.getByRole("list", { name: "Events" }).getByText("an instance was stopped: held").first().waitFor();
    await echo.getByRole("button", { name: "Start", exact: true }).click();
    await row(page, "echo").getByText("ready").first().waitFor();
    await echo.getByRole("button", { name: "Close" }).click();
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "echo", "the focus returns");
  }));

test("a conversation is streamed", () =>
  withPage({}, async (page) => {
    await signIn(page);
    const chat = await open(page, "chat");
    await chat.getByLabel("Message").fill("slowly 40");
    await chat.getByRole("button", { name: "Send" }).click();
    const answer = chat.getByText("Model1", { exact: false });
    await answer.waitFor();
    const early = await answer.textContent();
    await chat.getByText("39 40").waitFor();
    assert.ok(!early.includes("40"), `all at once: ${early}`);
    await chat.getByLabel("Message").fill("hello");
    await chat.getByRole("button", { name: "Send" }).click();
    await chat.getByText("You said: hello").waitFor();
    await chat.getByLabel("Message").fill("raise");
    await chat.getByRole("button", { name: "Send" }).click();
    await chat.getByText("No answer").waitFor();
    await assertAccessible(page, "conversation");
    await screenshot(page, "page-chat");
  }, ["status of 500"]));

test("a batch is seen by anyone, and cancelled by an administrator", () =>
  withPage({}, async (page) => {
    const authorization = { authorization: `Bearer ${TOKEN}` };
    const body = { model: "chat", messages: [{ role: "user", content: "slowly 20" }] };
    const lines = [...Array(400).keys()].map((at) => JSON.stringify({ custom_id: `${at}`, method: "POST", url: "/v1/chat/completions", body }));
    const form = new FormData();
    form.set("purpose", "batch");
    form.set("file", new Blob([lines.join("\n")]), "in.jsonl");
    const file = await (await fetch(`${ADMIN}/v1/files`, { method: "POST", headers: authorization, body: form })).json();
    const batch = await (await fetch(`${ADMIN}/v1/batches`, {
      method: "POST",
      headers: { "content-type": "application/json", ...authorization },
      body: JSON.stringify({ input_file_id: file.id, endpoint: "/v1/chat/completions", completion_window: "24h" }),
    })).json();
    const jobs = page.getByRole("region", { name: "Jobs" });
    const job = jobs.getByRole("row").filter({ has: page.getByRole("rowheader", { name: batch.id }) });
    await job.getByText("in progress").waitFor();
    await job.getByText("400 to /v1/chat/completions, chat").waitFor();
    assert.equal(await job.getByRole("button").count(), 0);
    assert.equal(await job.getByText("me", { exact: true }).count(), 0, "owners are for administrators");
    await signIn(page);
    await job.getByText("me", { exact: true }).waitFor();
    await assertAccessible(page, "a batch");
    await screenshot(page, "page-jobs");
    await job.getByRole("button", { name: `Cancel ${batch.id}` }).click();
    await jobs.getByRole("status").filter({ hasText: "cancelled" }).waitFor();
    await job.getByText(/^cancell(ing|ed)$/).waitFor();
  }));

test("JSON, files and images are sent and shown, and a log is followed", () =>
  withPage({}, async (page) => {
    await signIn(page);
    const echo = await open(page, "echo");
    await echo.getByLabel("JSON").fill('{"x": "<img src=x onerror=alert(1)>"}');
    await echo.getByRole("button", { name: "Send" }).click();
    await echo.getByLabel("Answer").getByText("<img src=x onerror=alert(1)>").waitFor();
    await echo.getByRole("button", { name: "Follow the log" }).click();
    const log = echo.getByRole("log", { name: "Log" });
    await log.getByText("asked once").first().waitFor();
    await echo.getByRole("button", { name: "Send" }).click();
    await log.getByText("asked once").nth(1).waitFor();
    await echo.getByRole("button", { name: "Stop following" }).click();
    await echo.getByLabel("Or a file").setInputFiles({ name: "a.bin", mimeType: "application/octet-stream", buffer: Buffer.from("12345") });
    await echo.getByRole("button", { name: "Send" }).click();
    await echo.getByText("5 bytes").waitFor();
    const picture = await open(page, "picture");
    await picture.getByRole("button", { name: "Send" }).click();
    await picture.getByRole("img", { name: "Answer of the model" }).waitFor();
    await assertAccessible(page, "an image");
    await screenshot(page, "page-model");
  }));

test("everything works by keyboard", () =>
  withPage({}, async (page) => {
    const focused = () => page.evaluate(() => document.activeElement.textContent.trim());
    await page.keyboard.press("Tab");
    assert.equal(await focused(), "Skip to content");
    await page.keyboard.press("Tab");
    assert.equal(await focused(), "Sign in");
    await page.keyboard.press("Enter");
    await page.getByRole("dialog", { name: "Sign in" }).waitFor();
    await page.keyboard.type(TOKEN);
    await page.keyboard.press("Enter");
    await page.getByText("Admin: me").waitFor();
    for (let presses = 0; (await focused()) !== "echo"; presses += 1) {
      assert.ok(presses < 60, "a model is reached");
      await page.keyboard.press("Tab");
    }
    await page.keyboard.press("Enter");
    const section = page.getByRole("region", { name: "Model echo" });
    await section.waitFor();
    for (let presses = 0; (await focused()) !== "Send"; presses += 1) {
      assert.ok(presses < 40, "the form is reached");
      await page.keyboard.press("Tab");
    }
    await page.keyboard.press("Enter");
    await section.getByLabel("Answer").waitFor();
  }));

test("it fits on a phone, in dark and in light", async () => {
  for (const colorScheme of ["light", "dark"]) {
    await withPage({ colorScheme, viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true }, async (page) => {
      await signIn(page);
      await assertFits(page);
      await assertAccessible(page, `phone, ${colorScheme}`);
      await open(page, "echo");
      await assertFits(page);
      await assertAccessible(page, `phone with a model, ${colorScheme}`);
      await screenshot(page, `phone-${colorScheme}`);
    });
  }
  await withPage({ colorScheme: "dark" }, async (page) => {
    await assertAccessible(page, "dark");
    await screenshot(page, "page-dark");
  });
});

test("many pages see the same state, and one connection more is refused", async () => {
  const readers = [];
  try {
    // Pages of the tests before may still be on their way out.
    const end = Date.now() + 20_000;
    while (readers.length < 32) {
      assert.ok(Date.now() < end, `only ${readers.length} pages`);
      const answer = await fetch(`${ADMIN}/page/events`);
      if (answer.ok) readers.push(answer.body.getReader());
      else await answer.text();
    }
    const texts = await Promise.all(readers.map(async (reader) => new TextDecoder().decode((await reader.read()).value)));
    assert.ok(texts.every((text) => text.startsWith("event: whole\n")));
    const refused = await fetch(`${ADMIN}/page/events`);
    assert.deepEqual([refused.status, refused.headers.get("retry-after")], [503, "10"]);
    await refused.text();
    assert.equal((await fetch(`${ADMIN}/livez`)).status, 200, "monitoring is not locked out");
  } finally {
    await Promise.all(readers.map((reader) => reader.cancel()));
  }
});
