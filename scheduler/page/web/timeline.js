// Timeline: where a model's GPU memory was and how often it moved, and its requests, over an hour or a day.
//
// Charts are paths of SVG made here: a few dozen lines do what is needed, and nothing has to be embedded and kept up to
// date.
import { byId, el, keyed, setAttribute, setText, svg } from "./dom.js";
import { byName, plural, time } from "./format.js";
import { setHistory, store } from "./store.js";

const HEIGHT = 26;
/** Height of the area; below it are the marks of moves. */
const AREA = 18;
/** Of the cards' lanes, the one for all models that have no lane of their own. */
const OTHERS = 4294967295;

export const timeline = { span: "hour" };

/** Area between the steps' values and a base line, as a path. `top`, `base`: y of a step. */
function area(steps, top, base) {
  let path = "";
  let from = 0;
  while (from < steps) {
    const [y, low] = [top(from), base(from)];
    let to = from + 1;
    while (to < steps && top(to) === y && base(to) === low) to += 1;
    if (low - y > 0.05) path += `M${from} ${y.toFixed(1)}H${to}V${low.toFixed(1)}H${from}Z`;
    from = to;
  }
  return path;
}

/** Marks at the steps in which something was counted; at least as wide as can be seen. */
function marks(values, y, height) {
  const width = Math.max(1, values.length / 400);
  let path = "";
  values.forEach((value, at) => {
    if (value > 0) path += `M${at} ${y}h${width}v${height}h${-width}Z`;
  });
  return path;
}

const sum = (values) => values.reduce((all, value) => all + value, 0);
const greatest = (values) => values.reduce((most, value) => Math.max(most, value), 0);

function pathsOfMemory([on, host, evictions, restores], steps) {
  const most = Math.max(1, greatest(on.map((value, at) => value + host[at])));
  const y = (value) => AREA - (value / most) * (AREA - 1);
  return {
    "fill-on": area(steps, (at) => y(on[at]), () => AREA),
    "fill-host": area(steps, (at) => y(on[at] + host[at]), (at) => y(on[at])),
    "fill-out": marks(evictions, 19, 3),
    "fill-in": marks(restores, 23, 3),
  };
}

function pathsOfRequests([, , requests, failed], steps) {
  const most = Math.max(1, greatest(requests));
  const y = (value) => HEIGHT - (value / most) * (HEIGHT - 1);
  return {
    "fill-load": area(steps, (at) => y(requests[at]), () => HEIGHT),
    "fill-bad": area(steps, (at) => y(Math.min(failed[at], requests[at])), () => HEIGHT),
  };
}

function summary({ card, values: [on, host, third, fourth] }) {
  if (card === undefined) return `${plural(sum(third), "request")}, ${sum(fourth)} failed`;
  const [here, away] = [sum(on), sum(host)];
  const part = here + away > 0 ? Math.round((here / (here + away)) * 100) : 0;
  return `${part} % of its bytes on the card, ${plural(sum(third), "eviction")}, ${plural(sum(fourth), "restore")}`;
}

function title({ card, model }) {
  const name = model || "Other models";
  return card === undefined ? `${name}: requests` : `${name}: ${card === OTHERS ? "cards" : `card ${card}`}`;
}

function create(lane) {
  const [name, text] = [el("span", {}, title(lane)), el("span", { class: "soft" })];
  const picture = svg("svg", { class: "lane", preserveAspectRatio: "none", role: "img" });
  const kinds = lane.card === undefined ? ["fill-load", "fill-bad"] : ["fill-host", "fill-on", "fill-out", "fill-in"];
  const paths = [...kinds, "fill-gap"].map((kind) => svg("path", { class: kind }));
  picture.append(...paths);
  return Object.assign(el("div", { class: "lane-row" }, el("div", {}, name, " ", text), picture), { text, picture, paths });
}

function update(row, { lane, steps, gaps }) {
  const { text, picture, paths } = row;
  const said = summary(lane);
  setText(text, said);
  setAttribute(picture, "aria-label", `${title(lane)}: ${said}`);
  setAttribute(picture, "viewBox", `0 0 ${Math.max(1, steps)} ${HEIGHT}`);
  const all = lane.card === undefined ? pathsOfRequests(lane.values, steps) : pathsOfMemory(lane.values, steps);
  for (const path of paths) setAttribute(path, "d", all[path.getAttribute("class")] ?? gaps);
}

export function showTimeline() {
  const history = store.histories.get(timeline.span);
  const lanes = history ? [...history.lanes.entries()] : [];
  const shown = lanes.filter(([, { values }]) => values.some((value) => greatest(value) > 0));
  const order = ([, a], [, b]) =>
    byName(a.model, b.model) || (a.card ?? OTHERS + 1) - (b.card ?? OTHERS + 1);
  shown.sort(order);
  byId("timeline-none").hidden = shown.length > 0;
  const steps = history?.steps ?? 0;
  byId("timeline-ends").hidden = shown.length === 0;
  if (history) {
    setText(byId("timeline-begin"), time(history.end - steps * history.seconds * 1000));
    setText(byId("timeline-end"), time(history.end));
  }
  const gaps = history ? area(steps, (at) => (history.observed[at] ? HEIGHT : 0), () => HEIGHT) : "";
  const items = shown.map(([key, lane]) => ({ key, lane, steps, gaps }));
  keyed(byId("timeline-lanes"), items, (item) => item.key, ({ lane }) => create(lane), update);
}

/** Fetches the history of the span that is shown. */
export async function loadHistory(span = timeline.span) {
  const answer = await fetch(`page/history?span=${span}`);
  if (answer.ok) setHistory(await answer.json());
}
