// One model: instances, versions, and for administrators its texts, commands, log and a form to try it.
import { byId, el, keyed, setAttribute, setText } from "./dom.js";
import { duration, plural, time, version } from "./format.js";
import { stopLog } from "./logs.js";
import { stateOf } from "./models.js";
import { controlPath, headers, problem, session } from "./session.js";
import { store } from "./store.js";
import { showForm } from "./try.js";

/** Name of the model that the address names; null for none. */
function named() {
  const match = /^#model\/(.+)$/.exec(location.hash);
  try {
    return match && decodeURIComponent(match[1]);
  } catch {
    return null;
  }
}

/** Shows the model of the address, and moves the focus to it. */
export function chooseModel() {
  const name = named();
  if (name === store.chosen) return;
  store.chosen = name;
  stopLog();
  byId("logs-lines").replaceChildren();
  byId("command-result").textContent = "";
  showModel();
  if (name) byId("model").focus();
}

function instanceText({ id, version: of, state, since_ms: since, in_flight: running }) {
  return `${id}: ${state} for ${duration((store.nowMs - since) / 1000)}, ${plural(running, "request")}, version ${version(of)}`;
}

function texts(detail) {
  const stop = detail.last_stop;
  const all = [
    ["Message", detail.message],
    ["Content refused", detail.refused],
    ["Last end of an instance", detail.last_exit],
    ["Last stop", stop && `${time(stop.unix_ms)}: ${stop.message}`],
    ...detail.versions.map(([of, text]) => [`Version ${version(of)}`, text]),
    ["Build", detail.build_log.join("\n")],
  ];
  return all.filter(([, text]) => text).map(([name, text]) => ({ name, text }));
}

export function showModel() {
  const shown = store.chosen;
  const model = shown && store.models.get(shown);
  byId("model").hidden = !shown;
  if (!shown) return;
  setText(byId("model-title"), `Model ${shown}`);
  if (!model) {
    setText(byId("model-state"), "There is no such model on this node.");
    byId("model-commands").hidden = true;
    byId("model-admin").hidden = true;
    return;
  }
  setText(byId("model-state"), `${stateOf(model)}; ${plural(model.restarts, "restart")}; kind ${model.kind ?? "unknown"}`);
  setAttribute(byId("model-state"), "class", `state-${model.state}`);
  byId("model-commands").hidden = !session.admin;
  byId("model-admin").hidden = !session.admin;
  byId("model-read-only").hidden = session.admin;
  const item = () => el("li");
  keyed(byId("model-instances"), model.instances, (at) => at.id, item, (child, at) => setText(child, instanceText(at)));
  const generation = (child, at) => setText(child, `${version(at.version)}: ${at.role}, ${at.state}`);
  keyed(byId("model-versions"), model.generations, (at) => at.version, item, generation);
  const detail = store.details.get(shown);
  const create = ({ name }) => el("div", {}, el("h3", {}, name), el("pre", { tabindex: 0, "aria-label": name }));
  const update = (child, { text }) => setText(child.lastElementChild, text);
  keyed(byId("model-texts"), detail && session.admin ? texts(detail) : [], (at) => at.name, create, update);
  if (session.admin) showForm(model);
}

async function command(button) {
  const result = byId("command-result");
  const buttons = [...byId("model-commands").querySelectorAll("button")];
  buttons.forEach((each) => { each.disabled = true; });
  result.textContent = "…";
  try {
    const answer = await fetch(controlPath(store.chosen, `/${button.dataset.command}`), { method: "POST", headers: headers() });
    result.textContent = answer.ok ? `${button.textContent}: done` : await problem(answer);
  } catch (error) {
    result.textContent = error.message;
  }
  buttons.forEach((each) => { each.disabled = false; });
  button.focus();
}

export function startModel() {
  byId("model-commands").addEventListener("click", ({ target }) => {
    if (target.dataset.command) command(target);
  });
  byId("model-close").addEventListener("click", () => {
    const row = [...byId("models-rows").querySelectorAll("a")].find((link) => link.textContent === store.chosen);
    location.hash = "#models";
    chooseModel();
    row?.focus();
  });
  addEventListener("hashchange", chooseModel);
  chooseModel();
}
