// Answers of models, as texts, streams, images and sounds: shown from memory, never as markup.
import { el } from "./dom.js";
import { events, lines } from "./stream.js";

/** Most characters of an answer that are shown. */
const SHOWN = 20_000;

/** A paragraph of a conversation. */
export function turn(who, text, kind = "") {
  const said = document.createTextNode(text);
  return Object.assign(el("div", { class: `turn ${kind}` }, el("b", {}, who), said), { said });
}

/** Shows a streamed chat completion as it comes; returns its text. */
export async function showChat(box, answer) {
  const shown = turn("Model", "");
  box.append(shown);
  // The whole is read aloud once, not each of its pieces.
  box.setAttribute("aria-busy", "true");
  let text = "";
  try {
    for await (const { data } of events(answer.body)) {
      if (data === "[DONE]") break;
      const message = JSON.parse(data);
      if (message.error) throw new Error(message.error.message);
      text += message.choices?.[0]?.delta?.content ?? "";
      shown.said.data = text;
    }
  } finally {
    box.setAttribute("aria-busy", "false");
  }
  return text;
}

function cut(text) {
  return text.length > SHOWN ? `${text.slice(0, SHOWN)}\n… ${text.length - SHOWN} more characters` : text;
}

function pretty(value) {
  return el("pre", { tabindex: 0, "aria-label": "Answer" }, cut(JSON.stringify(value, null, 2)));
}

/** Address of the last answer in memory, which is given back with the next one. */
let last = null;

function addressOf(blob) {
  if (last) URL.revokeObjectURL(last);
  last = URL.createObjectURL(blob);
  return last;
}

function media(type, url) {
  if (type.startsWith("image/")) return el("img", { src: url, alt: "Answer of the model" });
  if (type.startsWith("audio/")) return el("audio", { src: url, controls: true, "aria-label": "Answer of the model" });
  return el("a", { href: url, download: "answer" }, "Save the answer");
}

/** Shows an answer by its media type. */
export async function showAnswer(box, kind, answer) {
  const type = answer.headers.get("content-type") ?? "";
  if (type.startsWith("text/event-stream")) {
    const shown = turn("Model", "");
    box.append(shown);
    for await (const line of lines(answer.body)) {
      if (line.startsWith("data:") && shown.said.data.length < SHOWN) shown.said.data += `${line.slice(5).trim()}\n`;
    }
    return;
  }
  if (type.includes("json")) {
    const value = await answer.json();
    const image = kind === "text-to-image" && value.data?.[0]?.b64_json;
    box.append(image ? media("image/png", `data:image/png;base64,${image}`) : pretty(value));
    return;
  }
  if (type.startsWith("text/")) {
    box.append(el("pre", { tabindex: 0, "aria-label": "Answer" }, cut(await answer.text())));
    return;
  }
  box.append(media(type, addressOf(await answer.blob())));
}
