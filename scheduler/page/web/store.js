// State of the node as this page knows it: the whole of it once, then differences.

import { byName } from "./format.js";

const MOST_EVENTS = 256;
/** Seconds of the spans. */
const SPANS = { hour: 3600, day: 86_400 };

export const store = {
  nowMs: 0,
  node: null,
  cards: new Map(),
  models: new Map(),
  details: new Map(),
  /** The newest batches by their identifiers. */
  jobs: new Map(),
  events: [],
  /** Name of the model whose section is open. */
  chosen: null,
  /** Histories by span: { seconds, end, steps, observed, lanes }. */
  histories: new Map(),
};

/** Takes an event of the feed. */
export function apply(name, message) {
  if (name === "whole") {
    for (const map of [store.cards, store.models, store.details, store.jobs]) map.clear();
    store.events = [];
  }
  store.nowMs = message.now_ms;
  if (message.node) store.node = message.node;
  for (const index of message.gone_cards ?? []) store.cards.delete(index);
  for (const model of message.gone_models ?? []) {
    store.models.delete(model);
    store.details.delete(model);
  }
  for (const card of message.cards ?? []) store.cards.set(card.index, card);
  for (const model of message.models ?? []) store.models.set(model.name, model);
  for (const detail of message.details ?? []) store.details.set(detail.name, detail);
  for (const id of message.gone_jobs ?? []) store.jobs.delete(id);
  for (const job of message.jobs ?? []) store.jobs.set(job.id, job);
  if (message.events) store.events = [...store.events, ...message.events].slice(-MOST_EVENTS);
  if (message.step) addStep(message.step);
}

/** Models sorted by name. */
export const models = () => [...store.models.values()].sort((a, b) => byName(a.name, b.name));

const laneKey = (card, model) => `${card ?? ""}/${model}`;

/** Takes a history as the node sends it: runs become values, one for each step of the span, the newest last. */
export function setHistory({ span, seconds, end_ms, steps: known, observed, lanes }) {
  const steps = SPANS[span] / seconds;
  const values = (runs) => {
    const all = new Uint32Array(steps);
    let at = steps - known;
    for (let run = 0; run < runs.length; run += 2) {
      all.fill(runs[run], at, at + runs[run + 1]);
      at += runs[run + 1];
    }
    return all;
  };
  const lane = ({ card, model, values: runs }) => [laneKey(card, model), { card, model, values: runs.map(values) }];
  store.histories.set(span, { seconds, end: end_ms, steps, observed: values(observed), lanes: new Map(lanes.map(lane)) });
}

/** Adds a step that has ended to the last hour; one that the history has already is left out. */
function addStep({ end_ms, seconds, lanes }) {
  const hour = store.histories.get("hour");
  if (!hour || end_ms < hour.end + 500 * seconds) return;
  const push = (old, value) => {
    const all = new Uint32Array(hour.steps);
    all.set(old.subarray(1));
    all[hour.steps - 1] = value;
    return all;
  };
  const news = new Map(lanes.map(([card, model, sample]) => [laneKey(card, model), { card: card ?? undefined, model, sample }]));
  for (const [key, { card, model }] of news) {
    if (!hour.lanes.has(key)) {
      hour.lanes.set(key, { card, model, values: [0, 1, 2, 3].map(() => new Uint32Array(hour.steps)) });
    }
  }
  for (const [key, lane] of hour.lanes) {
    const sample = news.get(key)?.sample;
    lane.values = lane.values.map((old, at) => push(old, sample?.[at] ?? 0));
  }
  hour.observed = push(hour.observed, 1);
  hour.end = end_ms;
}
