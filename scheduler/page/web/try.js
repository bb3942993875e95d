// Form to try a model: fields by the kind of its requests, sent to the node's own APIs with the token of this tab.
import { showAnswer, showChat, turn } from "./answers.js";
import { byId, el } from "./dom.js";
import { headers, problem } from "./session.js";

/** Model and kind of the form that is shown, so that it is made anew for another one only. */
let present = "";
/** Conversation so far. */
let messages = [];
let running = null;

function field(id, label, input) {
  input.id = id;
  return el("p", {}, el("label", { for: id }, label), el("br"), input);
}

const text = (id, label, value = "") => {
  const area = el("textarea", { name: id, rows: 4 });
  area.value = value;
  return field(`try-${id}`, label, area);
};
const file = (id, label, accept) => field(`try-${id}`, label, el("input", { type: "file", name: id, accept }));

const dataUrl = (blob) =>
  new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => failed(reader.error);
    reader.readAsDataURL(blob);
  });

const json = (path, value) => ({
  path,
  body: JSON.stringify(value),
  headers: { "content-type": "application/json" },
});

/** By kind: fields of the form, and the request of what is in them. */
const FORMS = {
  "text-generation": {
    fields: () => [text("message", "Message"), file("image", "Image, for models that see", "image/*")],
    async request(model, form) {
      const said = form.get("message");
      const image = form.get("image");
      const parts = [{ type: "text", text: said }];
      if (image?.size > 0) parts.push({ type: "image_url", image_url: { url: await dataUrl(image) } });
      messages.push({ role: "user", content: parts.length > 1 ? parts : said });
      byId("try-answer").append(turn("You", said, "user"));
      byId("try-message").value = "";
      return json("v1/chat/completions", { model, messages, stream: true });
    },
  },
  embeddings: {
    fields: () => [text("input", "Text")],
    request: (model, form) => json("v1/embeddings", { model, input: form.get("input") }),
  },
  rerank: {
    fields: () => [text("query", "Query"), text("documents", "Documents, one a line")],
    request: (model, form) =>
      json("v1/rerank", { model, query: form.get("query"), documents: form.get("documents").split("\n").filter(Boolean) }),
  },
  "speech-to-text": {
    fields: () => [file("sound", "Sound", "audio/*")],
    request(model, form) {
      const body = new FormData();
      body.append("model", model);
      body.append("file", form.get("sound"));
      return { path: "v1/audio/transcriptions", body };
    },
  },
  "text-to-speech": {
    fields: () => [text("input", "Text")],
    request: (model, form) => json("v1/audio/speech", { model, input: form.get("input"), voice: "alloy" }),
  },
  "text-to-image": {
    fields: () => [text("prompt", "Prompt")],
    request: (model, form) =>
      json("v1/images/generations", { model, prompt: form.get("prompt"), response_format: "b64_json" }),
  },
  custom: {
    fields: () => [text("body", "JSON", '{"prompt": "hello"}'), file("file", "Or a file, which is sent as it is", "*/*")],
    request(model, form) {
      const path = `ai/run/${model.split("/").map(encodeURIComponent).join("/")}`;
      const sent = form.get("file");
      if (sent?.size > 0) {
        return { path, body: sent, headers: { "content-type": sent.type || "application/octet-stream" } };
      }
      JSON.parse(form.get("body")); // wrong text is shown as an error, and not sent
      return { path, body: form.get("body"), headers: { "content-type": "application/json" } };
    },
  },
};

/** Shows the form of a model, unless it is there already. */
export function showForm({ name, kind }) {
  const key = `${kind}/${name}`;
  if (key === present || !kind) return;
  present = key;
  messages = [];
  running?.abort();
  byId("try-answer").replaceChildren();
  const form = byId("try-form");
  const { fields } = FORMS[kind] ?? FORMS.custom;
  const stop = el("button", { type: "button", disabled: true, id: "try-stop", onclick: () => running?.abort() }, "Stop the answer");
  const send = el("button", { type: "submit", id: "try-send" }, "Send");
  const clear = el("button", { type: "button", onclick: reset }, "Clear");
  form.replaceChildren(...fields(), el("p", { class: "commands" }, send, stop, clear));
  form.onsubmit = (event) => {
    event.preventDefault();
    submit(name, kind, new FormData(form));
  };
}

function reset() {
  running?.abort();
  messages = [];
  byId("try-answer").replaceChildren();
}

async function submit(name, kind, data) {
  if (running) return;
  const own = new AbortController();
  running = own;
  byId("try-stop").disabled = false;
  const box = byId("try-answer");
  if (kind !== "text-generation") box.replaceChildren();
  try {
    const request = await (FORMS[kind] ?? FORMS.custom).request(name, data);
    const answer = await fetch(request.path, {
      method: "POST",
      body: request.body,
      headers: headers(request.headers),
      signal: own.signal,
    });
    if (!answer.ok) throw new Error(await problem(answer));
    if (kind === "text-generation") messages.push({ role: "assistant", content: await showChat(box, answer) });
    else await showAnswer(box, kind, answer);
  } catch (error) {
    const why = own.signal.aborted ? "Stopped." : error.message;
    box.append(turn("No answer", why, "bad-text"));
    if (messages.at(-1)?.role === "user") messages.pop();
  }
  if (running === own) running = null;
  byId("try-stop").disabled = true;
}
