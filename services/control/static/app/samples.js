// The last 15 minutes of a pipeline's figures, kept by this page only: for the charts, and for the rates of channels.
import { now } from "./format.js";

export const WINDOW_SECONDS = 900;
const MOST = 600;
const kept = new Map();

export function history(name) {
  if (!kept.has(name))
    kept.set(name, {
      looks: 0,
      at: [],
      rows: [],
      bytes: [],
      lake: [],
      channels: new Map(),
      channelsAt: 0,
      rates: new Map(),
      sent: null,
      pace: null,
    });
  return kept.get(name);
}

/** Begin a history with what the journal has: rows a second between two checkpoints, and the lag when each was published. */
export function recall(name, checkpoints) {
  const seen = history(name);
  const until = seen.at[0] ?? now();
  const old = checkpoints
    .filter((item) => item.written_at < until && item.written_at > now() - WINDOW_SECONDS)
    .sort((a, b) => a.number - b.number);
  const lag = (item, i) =>
    i && item.apply?.published_at && old[i - 1].source_time ? item.apply.published_at - old[i - 1].source_time : null; // just before
  const pace = (item, i) => (i ? item.staged_rows / Math.max(0.1, item.written_at - old[i - 1].written_at) : null);
  seen.at.unshift(...old.map((item) => item.written_at));
  seen.rows.unshift(...old.map(pace));
  seen.bytes.unshift(...old.map(() => null));
  seen.lake.unshift(...old.map(lag));
}

/** Note one look at the pipeline and its channels. Returns the history with new rates. */
export function observe(name, pipeline, channels) {
  const seen = history(name);
  seen.looks += 1;
  const at = now();
  const seconds = at - seen.channelsAt;
  if (seconds > 0.5) {
    const rates = new Map();
    const counts = new Map();
    for (const channel of channels) {
      const key = `${channel.from}>${channel.to}`;
      const total = channel.sent_bytes;
      counts.set(key, total);
      const before = seen.channels.get(key);
      if (before !== undefined && total >= before && seconds < 60) rates.set(key, (total - before) / seconds);
    }
    seen.channels = counts;
    seen.channelsAt = at;
    seen.rates = rates;
    const total = pipeline.rows_sent;
    seen.pace =
      seen.sent !== null && total !== null && total >= seen.sent && seconds < 60 ? (total - seen.sent) / seconds : null;
    seen.sent = total;
  }
  const flow = [...seen.rates]
    .filter(([key]) => /^reader.*>writer/.test(key))
    .reduce((sum, [, value]) => sum + value, 0);
  seen.at.push(at);
  seen.rows.push(seen.pace);
  seen.bytes.push(seen.rates.size ? flow : null);
  seen.lake.push(pipeline.source_time ? Math.max(0, at - pipeline.source_time) : null);
  while (seen.at[0] < at - WINDOW_SECONDS || seen.at.length > MOST)
    for (const list of [seen.at, seen.rows, seen.bytes, seen.lake]) list.shift();
  return seen;
}
