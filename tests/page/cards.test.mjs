// The page of a node whose models have four times the memory of its card, while they are asked all the time.
import assert from "node:assert/strict";
import { test } from "node:test";

import { assertAccessible, screenshot, withPage } from "./browser.mjs";

const MODELS = 13;

test("thirteen models at 400 % are on the map, in host memory and on the timeline", () =>
  withPage({}, async (page) => {
    const card = page.getByRole("group", { name: "Card 0" });
    await card.getByText("400 % of the card's budget").waitFor();
    const rows = card.getByRole("rowheader");
    await rows.nth(MODELS - 1).waitFor();
    assert.equal(await rows.count(), MODELS);
    const here = card.getByRole("img", { name: /^On card 0: / });
    const away = card.getByRole("img", { name: /^In host memory from card 0: / });
    assert.match(await here.getAttribute("aria-label"), /m\d+ 12\.0 MiB/);
    assert.match(await away.getAttribute("aria-label"), /m\d+ 12\.0 MiB/);
    // Moves go on while one looks.
    const evictions = async () => Number(await card.getByRole("row", { name: /^m0 / }).getByRole("cell").nth(4).textContent());
    const before = await evictions();
    for (const end = Date.now() + 20_000; (await evictions()) <= before; await page.waitForTimeout(100)) {
      assert.ok(Date.now() < end, "the page is live");
    }
    const lane = page.getByRole("img", { name: /^m0: card 0: \d+ % of its bytes on the card, [1-9]\d* evictions?/ });
    await lane.waitFor({ timeout: 40_000 });
    // The lane tells evictions from restores as the table does: memory leaves in parts, and comes back at once.
    const [, evicted, restored] = /(\d+) evictions?, (\d+) restores?/.exec(await lane.getAttribute("aria-label")).map(Number);
    assert.ok(evicted > restored, `${evicted} evictions, ${restored} restores`);
    await page.getByRole("img", { name: /^m0: requests: [1-9]\d* requests?, 0 failed/ }).waitFor();
    await page.getByLabel("Last 24 hours").check();
    await page.getByLabel("Last hour").check();
    await lane.waitFor();
    await assertAccessible(page, "13 models");
    await screenshot(page, "cards");
    await page.emulateMedia({ colorScheme: "dark" });
    await assertAccessible(page, "13 models, dark");
    await page.setViewportSize({ width: 360, height: 740 });
    await screenshot(page, "cards-phone-dark");
  }));
