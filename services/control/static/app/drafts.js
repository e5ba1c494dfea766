// What is typed in a form and not sent yet: kept in this tab, so that it survives a reload and a login; never a secret.
import { useRef, useState } from "./html.js";

const KEY = "cutline-draft:";
const SECRET = /(secret|passw|token|credential|access-?key|shared-key|connection-string|authorization|\.key$)/i;
const PLACE = /_(env|file)$/i; // says where a secret is
const SHOWN = /^["']?(\*\*\*|true\b|false\b|null\b)/; // as the API shows a secret, or no secret
const PAIR = /(["']?([\w.-]+)["']?:[ \t]+)([^\n,}]+)/g; // of YAML, also within braces
const IN_ADDRESS = /(:\/\/[^\s/:@]+):[^\s/@]+@/g;

const secret = (name) => SECRET.test(name) && !PLACE.test(name);

/** The same without secrets: of a mapping, or of a text of YAML. What the API shows as *** stays. */
function withoutSecrets(value) {
  if (typeof value === "string") return withoutSecretLines(value.replace(IN_ADDRESS, "$1:***@"));
  if (Array.isArray(value)) return value.map(withoutSecrets);
  if (value === null || typeof value !== "object") return value;
  const safe = (key, item) => !secret(key) || typeof item !== "string" || SHOWN.test(item);
  const kept = Object.entries(value).filter(([key, item]) => safe(key, item));
  return Object.fromEntries(kept.map(([key, item]) => [key, withoutSecrets(item)]));
}

function withoutSecretLines(text) {
  let hidden = null; // the indentation of a secret that may go on in the next lines
  const lines = text.split("\n").filter((line) => {
    const indent = line.search(/\S/);
    if (hidden !== null && (indent < 0 || indent > hidden)) return false;
    const name = /^\s*["']?([\w.-]+)["']?:/.exec(line)?.[1];
    hidden = name && secret(name) ? indent : null;
    return true;
  });
  const without = (pair, before, name, item) => (secret(name) && !SHOWN.test(item) ? before : pair);
  return lines.join("\n").replace(PAIR, without);
}

function read(name) {
  try {
    return JSON.parse(sessionStorage.getItem(KEY + name));
  } catch {
    return null;
  }
}

function write(name, value) {
  try {
    if (value === null) sessionStorage.removeItem(KEY + name);
    else sessionStorage.setItem(KEY + name, JSON.stringify(withoutSecrets(value)));
  } catch {
    // no storage, or none left: the draft lasts as long as the view
  }
}

/** Whether something is typed under this name. */
export const hasDraft = (name) => read(name) !== null;

/** Forget all drafts: the next person in this tab is another. */
export function forgetDrafts() {
  try {
    for (const key of Object.keys(sessionStorage)) if (key.startsWith(KEY)) sessionStorage.removeItem(key);
  } catch {
    // no storage
  }
}

/** A form's values: [values, set, forget, restored]. Each change is kept before `set` returns, since a reload can be
 * the next thing that happens: an effect comes after the next frame, and takes the last words with it. */
export function useDraft(name, start) {
  const [kept] = useState(() => read(name));
  const [values, setValues] = useState(kept ?? start);
  const newest = useRef(values); // also of changes that are not drawn yet
  const set = (some) => {
    newest.current = { ...newest.current, ...(typeof some === "function" ? some(newest.current) : some) };
    write(name, newest.current);
    setValues(newest.current);
  };
  return [values, set, () => write(name, null), kept !== null];
}
