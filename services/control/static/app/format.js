// Numbers, times and sizes as people read them. A value that is unknown is an en dash.

export const UNKNOWN = "–";
const whole = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const clockForm = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const minuteForm = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const dayForm = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });

export const now = () => Date.now() / 1000;
const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

export const count = (value) => (known(value) ? whole.format(Math.round(value)) : UNKNOWN);

/** A number that is a name (of a checkpoint, an epoch, a version): as events and the API spell it, without separators. */
export const label = (value) => (known(value) ? String(value) : UNKNOWN);

export const short = (value) =>
  known(value) ? (Math.abs(value) < 10_000 ? whole.format(Math.round(value)) : compact.format(value)) : UNKNOWN;

export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && Math.abs(value) < 10 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

/** A time span: 0.4 s, 42 s, 3 min 5 s, 2 h 3 min, 4 d 2 h. */
export function span(seconds) {
  if (!known(seconds)) return UNKNOWN;
  const s = Math.max(0, seconds);
  if (s < 9.95) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.round(s)} s`;
  const two = (big, bigUnit, small, smallUnit) => `${big} ${bigUnit}${small ? ` ${small} ${smallUnit}` : ""}`;
  if (s < 3600) return two(Math.floor(s / 60), "min", Math.round(s % 60) % 60, "s");
  if (s < 86_400) return two(Math.floor(s / 3600), "h", Math.floor((s % 3600) / 60), "min");
  return two(Math.floor(s / 86_400), "d", Math.floor((s % 86_400) / 3600), "h");
}

export const clock = (seconds) => (known(seconds) ? clockForm.format(seconds * 1000) : UNKNOWN);

/** The time of day; with the date if that is another day. */
export function moment(seconds) {
  if (!known(seconds)) return UNKNOWN;
  const day = dayForm.format(seconds * 1000);
  return day === dayForm.format(Date.now()) ? clock(seconds) : `${day}, ${clock(seconds)}`;
}

const wholeSpan = (seconds) => span(Math.floor(seconds)).replace(".0 s", " s");

/** How long ago, in whole seconds. */
export const ago = (seconds) =>
  known(seconds) ? (now() - seconds < 1 ? "just now" : `${wholeSpan(now() - seconds)} ago`) : UNKNOWN;

/** How long a state has lasted, and since when: "for 2 min 16 s, since 14:05". Empty if that is unknown. */
export const lasting = (since) =>
  known(since) ? `for ${wholeSpan(Math.max(0, now() - since))}, since ${minute(since)}` : "";

/** How long something took, in whole seconds. */
export const took = (from, to) => wholeSpan(Math.max(0, to - from));

/** The hour and minute; with the date if that is another day. */
function minute(seconds) {
  const [day, at] = [dayForm.format(seconds * 1000), minuteForm.format(seconds * 1000)];
  return day === dayForm.format(Date.now()) ? at : `${day}, ${at}`;
}

/** A short time: 84 ms, then as `span`. */
export const brief = (seconds) => (known(seconds) && seconds < 1 ? `${Math.round(seconds * 1000)} ms` : span(seconds));

/** The browser's time zone, in which all times are shown: Europe/Berlin. */
export const zone = () => Intl.DateTimeFormat().resolvedOptions().timeZone;

export const percent = (fraction) => (known(fraction) ? `${Math.floor(fraction * 100)} %` : UNKNOWN);

/** A cause or remedy of the API as a sentence: a full stop, and a capital letter unless it begins with a name (shop.orders). */
export const sentence = (text) => (text ? `${capital(text)}${/[.!?…]$/.test(text) ? "" : "."}` : "");

export const capital = (text) => (/^[a-z]+[ ,:]/.test(text) ? text[0].toUpperCase() + text.slice(1) : text);

export const plural = (number, noun, many = `${noun}s`) => `${count(number)} ${number === 1 ? noun : many}`;

/** A binlog position in one line: file:offset, or its GTIDs. */
export function position(value) {
  if (!value) return UNKNOWN;
  if (typeof value === "string") return value;
  return value.file ? `${value.file}:${value.offset ?? 0}` : (value.gtids ?? UNKNOWN);
}

const plain = /^[A-Za-z0-9_./][\w ./@*+-]*$/;
const reserved = /^(true|false|null|yes|no|on|off|~|[-+.\d].*)$/i;
const scalar = (value) =>
  typeof value === "string" && plain.test(value) && !reserved.test(value) ? value : JSON.stringify(value);

/** A definition as YAML, for people to read and to edit. */
export const yaml = (value) =>
  yamlLines(value)
    .map(([line]) => line)
    .join("\n");

/** The same as lines, each with the dotted path of the setting that it shows. */
export function yamlLines(value, path = "", indent = "") {
  if (!isTree(value)) return [[indent + scalar(value), path]];
  if (Array.isArray(value)) {
    if (!value.length) return [[`${indent}[]`, path]];
    return value.flatMap((item, i) => {
      if (!isTree(item)) return [[`${indent}- ${scalar(item)}`, `${path}.${i}`]];
      const [[first, at], ...rest] = yamlLines(item, `${path}.${i}`, `${indent}  `);
      return [[`${indent}- ${first.trimStart()}`, at], ...rest];
    });
  }
  const entries = Object.entries(value);
  if (!entries.length) return [[`${indent}{}`, path]];
  return entries.flatMap(([key, item]) => {
    const at = path ? `${path}.${key}` : key;
    if (isTree(item) && Object.keys(item).length)
      return [[`${indent}${scalar(key)}:`, null], ...yamlLines(item, at, `${indent}  `)];
    return [[`${indent}${scalar(key)}: ${Array.isArray(item) ? "[]" : isTree(item) ? "{}" : scalar(item)}`, at]];
  });
}

const isTree = (value) => value !== null && typeof value === "object";

/** The lines of two texts as [sign, line], sign being " ", "-" or "+": a longest common subsequence. */
export function lineDiff(before, after) {
  const a = before.split("\n");
  const b = after.split("\n");
  const width = b.length + 1;
  const length = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      length[i * width + j] =
        a[i] === b[j]
          ? length[(i + 1) * width + j + 1] + 1
          : Math.max(length[(i + 1) * width + j], length[i * width + j + 1]);
    }
  }
  const lines = [];
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      lines.push([" ", a[i]]);
      i += 1;
      j += 1;
    } else if (j === b.length || (i < a.length && length[(i + 1) * width + j] >= length[i * width + j + 1])) {
      lines.push(["-", a[i]]);
      i += 1;
    } else {
      lines.push(["+", b[j]]);
      j += 1;
    }
  }
  return lines;
}
