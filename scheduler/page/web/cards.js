// Map of the GPU memory: which model's bytes are on which card, and which are in host memory.
import { byId, el, keyed, setAttribute, setText, svg } from "./dom.js";
import { bytes, byName } from "./format.js";
import { store } from "./store.js";

/** A colour for each model that stays the same: names of models are what tells them apart, colours only help. */
function hue(name) {
  let hash = 2166136261;
  for (const char of name) hash = Math.imul(hash ^ char.codePointAt(0), 16777619);
  return `hsl(${(hash >>> 0) % 360} 60% 50%)`;
}

function map(label) {
  return svg("svg", { class: "map", viewBox: "0 0 1000 24", preserveAspectRatio: "none", role: "img", "aria-label": label });
}

/** Shows parts of a whole side by side: { key, model, size }. */
function showMap(picture, parts, whole, label) {
  let at = 0;
  const placed = parts.filter((part) => part.size > 0).map((part) => {
    const width = whole > 0 ? (part.size / whole) * 1000 : 0;
    const rect = { ...part, at, width };
    at += width;
    return rect;
  });
  setAttribute(picture, "aria-label", label);
  const create = ({ model }) => {
    const rect = svg("rect", { height: 24 }, svg("title"));
    rect.style.fill = model ? hue(model) : "var(--soft)";
    return rect;
  };
  keyed(picture, placed, (part) => part.key, create, (rect, { model, size, at: x, width }) => {
    setAttribute(rect, "x", x.toFixed(1));
    setAttribute(rect, "width", width.toFixed(1));
    setText(rect.firstElementChild, `${model ?? "others"}: ${bytes(size)}`);
  });
}

const RESIDENCY = {
  resident: "on the card",
  evicted: "in host memory",
  waiting: "waits for room",
  restoring: "moving to the card",
  evicting: "moving to the host",
};

function create({ index, name }) {
  const title = `Card ${index}`;
  const numbers = el("p", { class: "soft" });
  const [onCard, onHost] = [map(""), map("")];
  const rows = el("tbody");
  const head = ["Model", "Where", "On the card", "In host memory", "Limit", "Evicted", "Restored"];
  const table = el("table", {}, el("caption", { class: "soft" }, `Instances on card ${index}`),
    el("thead", {}, el("tr", {}, ...head.map((text, at) => el("th", { scope: "col", class: at > 1 ? "number" : null }, text)))), rows);
  const card = el("div", { class: "card", role: "group", "aria-label": title },
    el("h3", {}, `${title}: ${name}`), numbers,
    el("p", { class: "soft" }, "On the card"), onCard,
    el("p", { class: "soft" }, "In host memory"), onHost,
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Instances on card ${index}` }, table));
  return Object.assign(card, { numbers, onCard, onHost, rows });
}

function update(card, { index, total, used, budget, resident, committed, commit_limit: limit, instances }) {
  const over = budget > 0 ? Math.round((committed / budget) * 100) : 0;
  setText(card.numbers, `${bytes(resident)} of ${bytes(budget)} that models may have; ${bytes(used)} of ${bytes(total)} in use; ` +
    `${bytes(committed)} of ${bytes(limit)} committed, ${over} % of the card's budget`);
  const key = ({ id }) => id;
  instances.sort((a, b) => byName(a.model, b.model) || byName(a.id, b.id));
  const here = instances.map((at) => ({ key: at.id, model: at.model, size: at.resident }));
  const others = { key: "others", model: null, size: Math.max(0, used - resident) };
  const away = instances.map((at) => ({ key: at.id, model: at.model, size: Math.max(0, at.allocated - at.resident) }));
  const named = (parts) => parts.filter((part) => part.size > 0).map((part) => `${part.model ?? "others"} ${bytes(part.size)}`).join(", ");
  const whole = Math.max(total, used);
  showMap(card.onCard, [...here, others], whole, `On card ${index}: ${named([...here, others]) || "nothing"}`);
  const onHost = away.reduce((sum, part) => sum + part.size, 0);
  showMap(card.onHost, away, Math.max(whole, onHost), `In host memory from card ${index}: ${named(away) || "nothing"}`);
  keyed(card.rows, instances, key, createRow, updateRow);
}

function createRow({ model, id }) {
  const swatch = el("span", { class: "key" });
  swatch.style.background = hue(model);
  const cells = ["Where", "On the card", "In host memory", "Limit", "Evicted", "Restored"].map((label, at) =>
    el("td", { "data-label": label, class: at > 0 ? "number" : null }, el("span")));
  const row = el("tr", {}, el("th", { scope: "row" }, swatch, ` ${model} `, el("span", { class: "soft" }, id.slice(0, 6))), ...cells);
  return Object.assign(row, { values: cells.map((cell) => cell.firstElementChild) });
}

function updateRow(row, { residency, busy, resident, allocated, limit, evictions, restores }) {
  const where = `${RESIDENCY[residency] ?? residency}${busy ? ", working" : ""}`;
  const texts = [where, bytes(resident), bytes(Math.max(0, allocated - resident)), bytes(limit), `${evictions}`, `${restores}`];
  row.values.forEach((value, at) => setText(value, texts[at]));
}

export function showCards() {
  const cards = [...store.cards.values()].sort((a, b) => a.index - b.index);
  const message = store.node?.gpu_message;
  byId("cards-none").hidden = cards.length > 0 && !message;
  setText(byId("cards-none"), message ?? "No card for models.");
  keyed(byId("cards-list"), cards, (card) => card.index, create, update);
}
