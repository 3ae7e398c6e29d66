// The server's own routes, as any client would call them.

let key = sessionStorage.getItem("sgl-key") || "";

export function setKey(given) {
  key = given;
  sessionStorage.setItem("sgl-key", key);
}

export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function call(path, options = {}) {
  const headers = { ...(options.body ? { "Content-Type": "application/json" } : {}), ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  const answer = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

async function refusal(answer) {
  const text = await answer.text();
  try {
    return new Refusal(answer.status, JSON.parse(text).error.message);
  } catch {
    return new Refusal(answer.status, text.slice(0, 300) || `the server answered ${answer.status}`);
  }
}

export const getJson = async (path) => (await call(path)).json();
export const getText = async (path) => (await call(path)).text();

/** The events of a streamed answer as objects. Throws what the server tells instead, also in mid-stream. */
export async function* stream(path, body, signal) {
  const answer = await call(path, { method: "POST", body: JSON.stringify({ ...body, stream: true }), signal });
  for await (const line of lines(answer.body)) {
    if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
    const event = JSON.parse(line.slice(6));
    if (event.error) throw new Refusal(event.error.code ?? 500, event.error.message);
    yield event;
  }
}

async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    yield* parts;
  }
  if (rest) yield rest;
}
