// Table of the newest batches, which an administrator can cancel.
import { byId, el, keyed, setAttribute, setText } from "./dom.js";
import { duration, time } from "./format.js";
import { meter, setMeter } from "./node.js";
import { headers, problem, session } from "./session.js";
import { store } from "./store.js";

const LABELS = ["State", "Requests", "Completed", "Failed", "Begun", "Time", "Owner", "Command"];
const NUMBERS = new Set(["Completed", "Failed"]);
const RUNNING = new Set(["validating", "in_progress"]);

async function cancel(id) {
  const result = byId("jobs-result");
  result.textContent = "…";
  try {
    const answer = await fetch(`control/v1/jobs/${encodeURIComponent(id)}/cancel`, { method: "POST", headers: headers() });
    result.textContent = answer.ok ? `Batch ${id}: cancelled` : await problem(answer);
  } catch (error) {
    result.textContent = error.message;
  }
}

function create({ id }) {
  const cells = LABELS.map((label) => el("td", { "data-label": label, class: NUMBERS.has(label) ? "number" : null }, el("span")));
  const values = cells.map((cell) => cell.firstElementChild);
  const button = el("button", { type: "button", "aria-label": `Cancel ${id}`, onclick: () => cancel(id) }, "Cancel");
  values[7].append(button);
  const bar = meter(`Requests of ${id} that have ended`);
  cells[1].append(bar);
  return Object.assign(el("tr", {}, el("th", { scope: "row" }, id), ...cells), { values, bar, button });
}

/** Time that a batch has taken, or still has. */
function timeOf({ created_ms: created, ended_ms: ended, expires_ms: expires }) {
  if (ended != null) return `took ${duration((ended - created) / 1000)}`;
  return `${duration((expires - store.nowMs) / 1000)} left`;
}

function update(row, job) {
  const { id, endpoint, model, status, total, completed, failed, created_ms: created, owner, fault } = job;
  const texts = [
    fault ? `${status.replace("_", " ")}: ${fault}` : status.replace("_", " "),
    `${total} to ${endpoint}${model ? `, ${model}` : ""}`,
    `${completed}`,
    `${failed}`,
    time(created),
    timeOf(job),
    owner ?? "–",
  ];
  texts.forEach((text, at) => setText(row.values[at], text));
  setAttribute(row.values[0], "class", status === "failed" ? "bad-text" : "");
  setAttribute(row.values[3], "class", failed > 0 ? "bad-text" : "");
  setMeter(row.bar, { used: completed + failed, limit: total }, `Requests of ${id} that have ended`);
  row.button.hidden = !session.admin || !RUNNING.has(status);
}

export function showJobs() {
  const jobs = [...store.jobs.values()].sort((a, b) => b.created_ms - a.created_ms || (a.id < b.id ? 1 : -1));
  byId("jobs-none").hidden = jobs.length > 0;
  byId("jobs-table").hidden = jobs.length === 0;
  keyed(byId("jobs-rows"), jobs, (job) => job.id, create, update);
}
