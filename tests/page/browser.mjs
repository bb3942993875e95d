// A real browser, headless, for the tests of the node's page: Debian's Chromium, driven by playwright-core.
//
// What every test checks at its end: nothing was written to the console as an error, and nothing was asked of any other
// server.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before } from "node:test";

import { chromium } from "playwright-core";

export const ADMIN = process.env.OMNI_ADMIN_URL;
export const TOKEN = process.env.OMNI_TOKEN;
const ARTEFACTS = process.env.OMNI_ARTEFACTS;
const axe = readFileSync(createRequire(`${process.env.OMNI_CLIENTS}/package.json`).resolve("axe-core/axe.min.js"), "utf8");

let browser;
before(async () => {
  mkdirSync(ARTEFACTS, { recursive: true });
  browser = await chromium.launch({ executablePath: process.env.OMNI_CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
});
after(() => browser?.close());

/** Runs a test in a new browser; `expected`: errors on the console that belong to it. */
export async function withPage(options, test, expected = []) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  await context.addInitScript({ content: axe });
  const page = await context.newPage();
  page.setDefaultTimeout(20_000);
  const errors = [];
  const foreign = [];
  page.on("console", (message) => {
    const text = message.text();
    if (message.type() === "error" && !expected.some((part) => text.includes(part))) errors.push(text);
  });
  page.on("pageerror", (error) => errors.push(`${error.stack}`));
  page.on("request", (request) => {
    const url = request.url();
    if (![`${ADMIN}/`, "blob:", "data:"].some((own) => url.startsWith(own))) foreign.push(url);
  });
  try {
    await page.goto(ADMIN);
    await page.getByRole("status").filter({ hasText: "Live" }).waitFor();
    await test(page);
    assert.deepEqual(errors, [], "no error on the console");
    assert.deepEqual(foreign, [], "no request to another server");
  } catch (error) {
    await page.screenshot({ path: `${ARTEFACTS}/failed.png`, fullPage: true }).catch(() => {});
    throw Object.assign(error, { message: `${error.message}\nconsole: ${errors.join("\n")}` });
  } finally {
    await context.close();
  }
}

export async function signIn(page) {
  await page.getByRole("button", { name: "Sign in" }).click();
  const dialog = page.getByRole("dialog", { name: "Sign in" });
  await dialog.getByLabel("Token").fill(TOKEN);
  await dialog.getByRole("button", { name: "Sign in" }).click();
  await page.getByText("Admin: me").waitFor();
}

/** No rule of axe-core is broken. */
export async function assertAccessible(page, where) {
  const { violations, passes } = await page.evaluate(() => globalThis.axe.run(document));
  const found = violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map((node) => node.target + " " + (node.failureSummary ?? "")).join("; ")}`);
  assert.deepEqual(found, [], where);
  assert.ok(passes.length > 20, "the rules were applied");
}

export async function screenshot(page, name) {
  await page.screenshot({ path: `${ARTEFACTS}/${name}.png`, fullPage: true });
}

/** Nothing is wider than the screen. */
export async function assertFits(page) {
  const [content, screen] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert.ok(content <= screen, `${content} > ${screen}`);
}
