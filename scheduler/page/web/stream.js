// Streams of lines and of server-sent events over fetch, which can show a token; EventSource cannot.

/** Lines of a response's body. */
export async function* lines(body) {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const chunk of pieces(body)) {
    rest += decoder.decode(chunk, { stream: true });
    const all = rest.split("\n");
    rest = all.pop();
    yield* all;
  }
  if (rest) yield rest;
}

async function* pieces(body) {
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Server-sent events of a response's body, as name and data. */
export async function* events(body) {
  let name = "message";
  let data = [];
  for await (const raw of lines(body)) {
    const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
    if (line === "") {
      if (data.length > 0) yield { name, data: data.join("\n") };
      name = "message";
      data = [];
    } else if (line.startsWith("event:")) {
      name = line.slice(6).trim();
    } else if (line.startsWith("data:")) {
      data.push(line.slice(line[5] === " " ? 6 : 5));
    }
  }
}

const PAUSES = [1000, 2000, 5000, 10000];

/**
 * Feeds `on.event` with the node's state, for ever: after a broken connection it connects again. `on.state` gets the
 * state of the connection as a text. Returns a function that starts anew, with another token.
 */
export function follow(path, headers, on) {
  let current = new AbortController();
  let failures = 0;
  const run = async (signal) => {
    while (!signal.aborted) {
      try {
        const answer = await fetch(path, { headers: headers(), signal });
        if (!answer.ok) throw new Error((await answer.text()).trim());
        for await (const { name, data } of events(answer.body)) {
          failures = 0;
          if (signal.aborted) return;
          on.event(name, JSON.parse(data));
        }
        throw new Error("the connection ended");
      } catch (error) {
        if (signal.aborted) return;
        on.state(`Not connected: ${error.message}`);
      }
      const pause = PAUSES[Math.min(failures, PAUSES.length - 1)];
      failures += 1;
      await new Promise((wake) => setTimeout(wake, pause));
    }
  };
  run(current.signal);
  return () => {
    current.abort();
    current = new AbortController();
    failures = 0;
    run(current.signal);
  };
}
