// Start of the page: the feed, what it changes on the page, and signing in.
import { byId, setText } from "./dom.js";
import { showCards } from "./cards.js";
import { showEvents } from "./events.js";
import { showJobs } from "./jobs.js";
import { startLogs } from "./logs.js";
import { showModel, startModel } from "./model.js";
import { showModels } from "./models.js";
import { showNode } from "./node.js";
import { headers, session, signIn, signOut } from "./session.js";
import { apply, store } from "./store.js";
import { follow } from "./stream.js";
import { loadHistory, showTimeline, timeline } from "./timeline.js";

const DAY_EVERY_MS = 120_000;
let asked = false;

/** Shows the state with the next frame, however many events came before it. */
function show() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    for (const part of [showNode, showCards, showModels, showModel, showJobs, showEvents]) part();
  });
}

async function history() {
  try {
    await loadHistory();
  } catch {
    return; // the feed says that there is no connection
  }
  showTimeline();
}

const restart = follow("page/events", headers, {
  state: (text) => setText(byId("connection"), text),
  event(name, message) {
    setText(byId("connection"), "Live");
    apply(name, message);
    show();
    if (name === "whole") history();
    else if (message.step && timeline.span === "hour") showTimeline();
  },
});

function showAccount() {
  setText(byId("account-name"), session.admin ? `Admin: ${session.name}` : "Read only");
  setText(byId("sign-in"), session.admin ? "Sign out" : "Sign in");
}

/** Takes another token into use: the feed has texts with it, or has none any more. */
function changed() {
  showAccount();
  store.details.clear();
  show();
  restart();
}

function startSigningIn() {
  const dialog = byId("sign-in-dialog");
  byId("sign-in").addEventListener("click", () => {
    if (session.admin) {
      signOut();
      changed();
      return;
    }
    byId("sign-in-problem").textContent = "";
    dialog.showModal();
  });
  byId("sign-in-cancel").addEventListener("click", () => dialog.close());
  byId("sign-in-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await signIn(byId("token").value.trim());
    } catch (error) {
      byId("sign-in-problem").textContent = error.message;
      return;
    }
    byId("token").value = "";
    dialog.close();
    changed();
  });
}

for (const choice of document.querySelectorAll("input[name=span]")) {
  choice.addEventListener("change", () => {
    timeline.span = choice.value;
    history();
  });
}
byId("events-failures").addEventListener("change", showEvents);
setInterval(() => timeline.span === "day" && history(), DAY_EVERY_MS);
startSigningIn();
startLogs();
startModel();
if (session.token) signIn().then(changed, showAccount);
