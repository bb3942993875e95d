// The token of this tab: kept in its session storage, sent to this node alone, checked before it is used.

const KEY = "omni-token";

export const session = { token: sessionStorage.getItem(KEY), name: "", admin: false };

/** Headers of a request with the token. */
export function headers(more = {}) {
  return session.token ? { authorization: `Bearer ${session.token}`, ...more } : more;
}

/** Checks a token; throws with a text for people. Without one, reads the role of the present one. */
export async function signIn(token = session.token) {
  session.token = token;
  try {
    if (!token) return;
    const answer = await fetch("page/session", { headers: headers() });
    if (!answer.ok) throw new Error((await answer.text()).trim());
    const { name, role } = await answer.json();
    if (role !== "admin") throw new Error("This token has not the role admin.");
    Object.assign(session, { name, admin: true });
    sessionStorage.setItem(KEY, token);
  } catch (error) {
    signOut();
    throw error;
  }
}

export function signOut() {
  Object.assign(session, { token: null, name: "", admin: false });
  sessionStorage.removeItem(KEY);
}

/** Path of the control API for a model. */
export const controlPath = (model, end) => `control/v1/models/${encodeURIComponent(model)}${end}`;

/** Text of a failed answer, in any form that the node's APIs have. */
export async function problem(answer) {
  const text = await answer.text();
  try {
    const json = JSON.parse(text);
    const said = json.detail ?? json.error?.message ?? json.errors?.[0]?.message ?? json.message;
    if (typeof said === "string") return `${answer.status}: ${said}`;
  } catch {
    // Not JSON: the text itself.
  }
  return `${answer.status}: ${text.trim() || answer.statusText}`;
}
