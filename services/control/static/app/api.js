// The REST API as this page uses it: one function a call, a Problem for each error, and a stream of events.

const KEY = "cutline-token";
let token = read();
const listeners = new Set();

function read() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
}

/** Keep the token until the tab closes; null forgets it. */
export function setToken(value) {
  token = value;
  try {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  } catch {
    // no storage: the token lasts as long as the page
  }
}

export const hasToken = () => Boolean(token);

/** Call `listener` whenever the API answers 401. Returns how to stop that. */
export function onRefused(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** A remedy for programs, such as "GET /v1/pipelines lists them": here a link or a list does that. */
const CALL = /^(GET|POST|PUT|PATCH|DELETE) /;

/** An error of the API, or of the way to it: cause, remedy, and the fields that it is about. */
export class Problem extends Error {
  constructor({ status = 0, title, detail, remedy, errors, request_id: requestId }) {
    super(detail || title || "The request failed");
    this.status = status;
    this.title = title;
    this.remedy = remedy && !CALL.test(remedy) ? remedy : null;
    this.errors = errors ?? [];
    this.requestId = requestId ?? null;
  }
}

async function problem(response) {
  let body = {};
  try {
    body = await response.json();
  } catch {
    // not JSON: a proxy's page
  }
  let { detail, errors } = body;
  if (Array.isArray(detail)) {
    errors = detail.map((item) => ({ field: (item.loc ?? []).slice(1).join("."), detail: item.msg }));
    detail = errors.map((item) => `${item.field}: ${item.detail}`).join("; ");
  }
  return new Problem({ ...body, status: response.status, title: body.title ?? response.statusText, detail, errors });
}

async function send(method, path, { body, headers = {}, signal } = {}) {
  const sent = { Accept: "application/json", ...headers };
  if (token) sent.Authorization = `Bearer ${token}`;
  let content = body;
  if (body !== undefined && typeof body !== "string") {
    content = JSON.stringify(body);
    sent["Content-Type"] ??= "application/json";
  }
  let response;
  try {
    response = await fetch(path, { method, headers: sent, body: content, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({
      title: "No answer",
      detail: "The control service does not answer",
      remedy:
        method === "GET"
          ? "This page tries again by itself; check that the service runs"
          : "Check that the service runs, then try again",
    });
  }
  if (response.ok) return response;
  const failed = await problem(response);
  if (response.status === 401) for (const listener of listeners) listener(failed);
  throw failed;
}

/** The body of an answer as JSON; null if it has none. */
export async function call(method, path, options) {
  const response = await send(method, path, options);
  return parsed(await response.text());
}

const LONG = /"(?:[^"\\]|\\.)*"|(?<![\d.eE+-])-?\d{16,}(?![\d.eE])/g;

/** JSON whose integers beyond 2^53 (ids of snapshots) become strings, since numbers here would lose their last digits. */
function parsed(text) {
  if (!text) return null;
  return JSON.parse(
    /\d{16}/.test(text) ? text.replace(LONG, (found) => (found.startsWith('"') ? found : `"${found}"`)) : text,
  );
}

export const get = (path, options) => call("GET", path, options);

const nextOf = (response) => /<([^>]+)>;\s*rel="next"/.exec(response.headers.get("Link") ?? "")?.[1] ?? null;

/** All pages of a list, `most` items at most. */
export async function getAll(path, { most = 10_000, signal } = {}) {
  const found = [];
  let next = path;
  while (next && found.length < most) {
    const response = await send("GET", next, { signal });
    found.push(...parsed(await response.text()));
    next = nextOf(response);
  }
  return found;
}

/** The pages of a list that a POST answers, one after the other. */
export async function* pages(path, body, signal) {
  for (let next = path; next; ) {
    const response = await send("POST", next, { body, signal });
    yield parsed(await response.text());
    next = nextOf(response);
  }
}

/** One page of a list, and the address of the next one. */
export async function getPage(path) {
  const response = await send("GET", path);
  return { items: parsed(await response.text()), next: nextOf(response) };
}

/** A key for a mutating call: a repeated call with the same one is not done twice. */
export const newKey = () => crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;

/** A mutating call, with a key of its own unless `headers` has one. */
export const act = (method, path, body, headers = {}) =>
  call(method, path, { body, headers: { "Idempotency-Key": newKey(), ...headers } });

/** Events as they happen (SSE over fetch, which can send the token). Ends with the signal; the caller opens it again. */
export async function* stream(path, { signal, lastId } = {}) {
  const headers = { Accept: "text/event-stream" };
  if (lastId) headers["Last-Event-ID"] = lastId;
  const response = await send("GET", path, { headers, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    const blocks = rest.split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) {
      const fields = {};
      for (const line of block.split(/\r?\n/)) {
        const [, name, text] = /^(\w+): ?(.*)$/.exec(line) ?? [];
        if (name) fields[name] = name === "data" && fields.data ? `${fields.data}\n${text}` : text;
      }
      if (fields.data) yield { id: fields.id ?? null, event: fields.event ?? "message", data: JSON.parse(fields.data) };
    }
  }
}

export const pipelinePath = (name, rest = "") => `/v1/pipelines/${encodeURIComponent(name)}${rest}`;
