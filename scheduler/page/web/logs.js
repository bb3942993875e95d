// Log of a model as it comes.
import { byId, el } from "./dom.js";
import { time } from "./format.js";
import { controlPath, headers, problem } from "./session.js";
import { store } from "./store.js";
import { lines } from "./stream.js";

const KEPT = 1000;
let following = null;

export function stopLog() {
  following?.abort();
  following = null;
  const button = byId("logs-follow");
  button.setAttribute("aria-pressed", "false");
  button.textContent = "Follow the log";
}

function add(box, text) {
  const atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 20;
  box.append(el("p", {}, text));
  while (box.childElementCount > KEPT) box.firstElementChild.remove();
  if (atEnd) box.scrollTop = box.scrollHeight;
}

async function follow() {
  const box = byId("logs-lines");
  const button = byId("logs-follow");
  button.setAttribute("aria-pressed", "true");
  button.textContent = "Stop following";
  box.replaceChildren();
  const own = new AbortController();
  following = own;
  try {
    const answer = await fetch(controlPath(store.chosen, "/logs?lines=200&follow=true"), { headers: headers(), signal: own.signal });
    if (!answer.ok) throw new Error(await problem(answer));
    for await (const line of lines(answer.body)) {
      const { unix_ms: at, stream, text } = JSON.parse(line);
      add(box, `${time(at)} ${stream} ${text}`);
    }
    add(box, "The log has ended.");
  } catch (error) {
    if (!own.signal.aborted) add(box, `The log broke off: ${error.message}`);
  }
  if (following === own) stopLog();
}

export function startLogs() {
  byId("logs-follow").addEventListener("click", () => (following ? stopLog() : follow()));
}
