// Events of models: failures with their reasons, stops, roll-outs.
import { byId, el, keyed } from "./dom.js";
import { time, version } from "./format.js";
import { store } from "./store.js";

const FAILURES = new Set(["failed", "died", "candidate-failed", "refused"]);
const SHOWN = 100;

function sentence({ kind, about }) {
  switch (kind) {
    case "failed": return "cannot serve";
    case "died": return "an instance has died";
    case "stopped": return `an instance was stopped: ${about}`;
    case "ready": return "is ready";
    case "rolled-out": return `serves version ${version(about)} now`;
    case "candidate-failed": return `version ${version(about)} has failed and does not take over`;
    case "refused": return "the content of its directory is refused";
    case "added": return "is new";
    case "removed": return "is gone";
    default: return kind;
  }
}

function create(event) {
  const text = event.text ? el("pre", { tabindex: 0, "aria-label": "Reason" }, event.text) : null;
  const bad = FAILURES.has(event.kind) ? "bad-text" : null;
  return el("li", {}, el("span", { class: "soft" }, `${time(event.unix_ms)} `), el("b", {}, event.model), " ",
    el("span", { class: bad }, sentence(event)), text);
}

export function showEvents() {
  const only = byId("events-failures").checked;
  const shown = store.events.filter((event) => !only || FAILURES.has(event.kind)).slice(-SHOWN).reverse();
  byId("events-none").hidden = shown.length > 0;
  // Numbers begin again with a restart. An event with its text is another item than the one without it, as after
  // signing in.
  keyed(byId("events-list"), shown, (event) => `${event.unix_ms}/${event.number}/${event.model}${event.text ? "+" : ""}`, create, () => {});
}
