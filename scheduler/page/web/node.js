// The node itself: what it has committed beside its limits.
import { byId, el, keyed, setAttribute, setText, svg } from "./dom.js";
import { bytes, duration, share } from "./format.js";
import { store } from "./store.js";

const cpus = (millis) => `${(millis / 1000).toFixed(1)} CPUs`;
const whole = (count) => `${count}`;

function figures({ version, started_ms: started, draining, launcher_connected: launcher, waiting, ...node }) {
  const state = draining ? "shutting down" : launcher ? "serving" : "without its launcher: nothing can start";
  const all = [
    { name: "Scheduler", text: `${version}, ${state}, for ${duration((store.nowMs - started) / 1000)}` },
    { name: "Memory of instances", text: share(node.memory, bytes), part: node.memory },
    { name: "Processors of instances", text: share(node.cpu_millis, cpus), part: node.cpu_millis },
    { name: "Processes", text: share(node.processes, whole), part: node.processes },
    { name: "Bodies in memory", text: share(node.bodies, bytes), part: node.bodies },
    { name: "Starts that wait", text: `${waiting}` },
  ];
  if (store.cards.size > 0) {
    all.push({ name: "Host memory for evicted models", text: share(node.gpu_host, bytes), part: node.gpu_host });
  }
  return all;
}

function create({ name, part }) {
  const figure = el("span");
  const bar = part?.limit ? el("div", {}, meter(`${name}, used part`)) : null;
  return Object.assign(el("li", {}, el("b", {}, name), figure, bar), { figure });
}

/** A bar of a part of a limit, which its text says too. */
export function meter(label) {
  return svg("svg", { class: "bar", viewBox: "0 0 1000 10", preserveAspectRatio: "none", role: "img", "aria-label": label },
    svg("rect", { class: "fill-on", height: 10, width: 0 }));
}

export function setMeter(bar, { used, limit }, label) {
  const part = limit ? Math.min(1, used / limit) : 0;
  setAttribute(bar.firstElementChild, "width", Math.round(part * 1000));
  setAttribute(bar, "aria-label", `${label}: ${Math.round(part * 100)} %`);
}

export function showNode() {
  if (!store.node) return;
  keyed(byId("figures"), figures(store.node), (figure) => figure.name, create, (item, { name, text, part }) => {
    setText(item.figure, text);
    const bar = item.querySelector("svg");
    if (bar && part) setMeter(bar, part, name);
  });
}
