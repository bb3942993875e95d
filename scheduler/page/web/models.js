// Table of all models.
import { byId, el, keyed, setAttribute, setText } from "./dom.js";
import { bytes, duration, milliseconds, rate, share, version } from "./format.js";
import { models, store } from "./store.js";

const LABELS = ["State", "Instances", "Running", "Waiting", "Requests/s", "Failing/s", "p50", "p95", "p99", "Memory", "Version"];
const TEXTS = new Set(["State", "Memory", "Version"]);

/** State of a model in words: what is not ordinary is said. */
export function stateOf({ state, held, pinned, refused, retry_at_ms: retry }) {
  const parts = [state];
  if (held) parts.push("stopped by hand");
  if (pinned) parts.push("rolled back");
  if (refused) parts.push("new content refused");
  if (retry != null && retry > store.nowMs) parts.push(`next try in ${duration((retry - store.nowMs) / 1000)}`);
  return parts.join(", ");
}

function create({ name }) {
  const cells = LABELS.map((label) => el("td", { "data-label": label, class: TEXTS.has(label) ? null : "number" }, el("span")));
  const link = el("a", { href: `#model/${encodeURIComponent(name)}` }, name);
  return Object.assign(el("tr", {}, el("th", { scope: "row" }, link), ...cells), { values: cells.map((cell) => cell.firstElementChild) });
}

function update(row, model) {
  const { instances, in_flight: running, queued, queue_limit: queue, latency, memory } = model;
  const ready = instances.filter((instance) => instance.state === "ready").length;
  const texts = [
    stateOf(model),
    ready === instances.length ? `${ready}` : `${ready} of ${instances.length} ready`,
    `${running}`,
    queue > 0 ? `${queued} of ${queue}` : `${queued}`,
    rate(model.rate),
    rate(model.failing),
    milliseconds(latency?.p50),
    milliseconds(latency?.p95),
    milliseconds(latency?.p99),
    memory ? share(memory, bytes) : "–",
    version(model.version),
  ];
  row.values.forEach((value, at) => setText(value, texts[at]));
  setAttribute(row.values[0], "class", `state-${model.state}`);
  setAttribute(row.values[5], "class", model.failing > 0 ? "bad-text" : "");
}

export function showModels() {
  const all = models();
  byId("models-none").hidden = all.length > 0;
  byId("models-table").hidden = all.length === 0;
  keyed(byId("models-rows"), all, (model) => model.name, create, update);
}
