// The last 15 minutes of a pipeline's figures, kept by this page only: for the charts, and for the rates of channels.
import { now } from "./format.js";

export const WINDOW_SECONDS = 900;
const kept = new Map();

const blank = () => ({ at: [], rows: [], bytes: [], lake: [], source: [], channels: new Map(), channelsAt: 0, rates: new Map(), last: null });

export function history(name) {
  if (!kept.has(name)) kept.set(name, blank());
  return kept.get(name);
}

/** Note one look at the pipeline: its view, its tables' rates and its channels. Returns the history with new rates. */
export function observe(name, pipeline, tables, channels) {
  const seen = history(name);
  const at = now();
  const seconds = at - seen.channelsAt;
  if (channels && seconds > 0.5) {
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
  }
  const rate = tables ? tables.reduce((sum, table) => sum + (table.rate_rows_per_second ?? 0), 0) : null;
  const flow = [...seen.rates].filter(([key]) => /^reader.*>writer/.test(key)).reduce((sum, [, value]) => sum + value, 0);
  seen.at.push(at);
  seen.rows.push(pipeline.rate_rows_per_second ?? rate);
  seen.bytes.push(seen.rates.size ? flow : null);
  seen.lake.push(pipeline.source_time ? Math.max(0, at - pipeline.source_time) : null);
  seen.source.push(pipeline.source_lag_seconds ?? null);
  while (seen.at.length && seen.at[0] < at - WINDOW_SECONDS) for (const list of [seen.at, seen.rows, seen.bytes, seen.lake, seen.source]) list.shift();
  return seen;
}
