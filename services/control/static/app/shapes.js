// The API's answers in the form that the parts draw. The only place that knows both.
import { bytes, count, lasting, moment, now, plural, sentence, short, span } from "./format.js";

/** What a person must act on first: the API lists the most severe first. Null if nothing is, or all are acknowledged. */
export const foremost = (conditions) => conditions?.find((condition) => !condition.acknowledged) ?? null;

export const SEVERITY_TONES = { critical: "bad", warning: "warn", info: "plain" };
const CHOSEN = ["paused", "stopped", "deleting"];

/** A role as people call it. */
export const roleName = (role) => (role === "spark_writer" ? "Spark writer" : role);

/** A condition's name in words: CutlineSourceDisconnected is "source disconnected". */
const wordOf = ({ name, labels }) =>
  name
    .replace(/^Cutline/, "")
    .replace(/([a-z])([A-Z])/g, "$1 $2")
    .toLowerCase()
    .replace("redis", "Redis")
    .replace("spark", "Spark")
    .replace("leader", labels?.role ? roleName(labels.role) : "leader");

/**
 * What a pipeline does: {mode, word, sentence, since, tone, troubled}. Word and sentence are those of the condition that
 * a person must act on first; without one, of what the pipeline reports. Green is only what is `mode` running and current.
 */
export function state(pipeline) {
  const found = reported(pipeline);
  const first = foremost(pipeline.conditions);
  if (!first) return pipeline.conditions?.length && found.mode !== "running" ? { ...found, tone: "dropped" } : found;
  const behind = pipeline.source_time ? ` The lake shows the source as it was ${behindOf(pipeline)} ago.` : "";
  return {
    mode: CHOSEN.includes(found.mode) ? found.mode : first.severity,
    word: CHOSEN.includes(found.mode) ? found.word : wordOf(first),
    sentence: `${sentence(first.summary)}${behind}`,
    since: first.since,
    tone: SEVERITY_TONES[first.severity],
    troubled: true,
  };
}

const behindOf = (pipeline) => (pipeline.source_time ? span(now() - pipeline.source_time) : null);

/** The same from the pipeline's own report, without a condition. */
function reported(pipeline) {
  const mode = pipeline.mode ?? "running";
  const behind = behindOf(pipeline);
  const since = pipeline.mode_since ?? null;
  if (mode === "deleting")
    return {
      mode,
      since,
      sentence: "It is being deleted: its lake tables, if that was asked for, then its files in the store.",
    };
  if (mode === "stopped")
    return {
      mode,
      since,
      sentence: `Stopped at checkpoint ${short(pipeline.checkpoint)}; the lake keeps what it shows.`,
    };
  if (pipeline.halted)
    return {
      mode: "halted",
      since: pipeline.halted_since ?? null,
      sentence: `Halted until a person acts. ${sentence(pipeline.halted.sentence)}`,
    };
  if (mode === "paused")
    return {
      mode,
      since,
      sentence: `Paused; the lake shows the source as it was ${behind ? `${behind} ago` : "at the last publication"}.`,
    };
  if (starts(pipeline))
    return { mode: "waiting", word: "starting", sentence: "An enumerator takes it up within seconds." };
  if (pipeline.current === false)
    return { mode: "unknown", word: "not current", sentence: "No leader reports now; this is its last known state." };
  if (pipeline.waiting_for && pipeline.waiting_for.party !== "person") return waiting(pipeline, behind);
  return moving(pipeline, behind);
}

function waiting({ waiting_for: { what, cause, since = null }, retry_at: retryAt }, behind) {
  const why = cause ? `: ${[cause.sentence, cause.remedy].filter(Boolean).join("; ")}` : "";
  const next = retryAt ? ` The next try is at ${moment(retryAt)}.` : "";
  const shows = behind ? ` The lake shows the source as it was ${behind} ago.` : "";
  return { mode: "waiting", since, sentence: `Waiting for ${what}${why}.${next}${shows}` };
}

function moving(pipeline, behind) {
  const total = Object.values(pipeline.tables ?? {}).reduce((a, b) => a + b, 0);
  const live = pipeline.tables?.live ?? 0;
  const all = total && live === total;
  const tables = all ? "All tables are live" : `${count(live)} of ${plural(total, "table")} are live`;
  return {
    mode: "running",
    word: all ? "live" : "running",
    since: pipeline.mode_since ?? null,
    sentence: behind ? `${tables}; the lake is ${behind} behind the source.` : `${tables}.`,
  };
}

/** The mode that a person chose, and since when: "paused for 3 min, since 14:05"; without the word that stands beside. */
export const modeText = (pipeline, beside) => {
  const mode = pipeline.mode ?? "running";
  return `${mode === beside ? "" : mode} ${lasting(pipeline.mode_since)}`.trim();
};

/** Since when a pipeline is what `about` (of `state`) says, as a sentence; empty if that is unknown. */
export const sinceOf = (pipeline, about) =>
  sentence(about.troubled || about.mode !== (pipeline.mode ?? "running") ? lasting(about.since) : known(pipeline));

const known = (pipeline) => (pipeline.mode_since ? modeText(pipeline) : "");

/** Of when a pipeline's state is, if no leader reports now. */
export const asOf = (pipeline) =>
  pipeline.current === false && pipeline.as_of && !starts(pipeline) ? `As of ${moment(pipeline.as_of)}.` : null;

/** The conditions that are about a table: its own, and those of the whole pipeline; not those of other tables. */
export const conditionsOf = (pipeline, table) =>
  (pipeline.conditions ?? []).filter((each) => !each.tables_total || each.tables.includes(table));

/** What holds back whatever the pipeline reports: a condition of this name, acknowledged or not. */
const holds = (pipeline, name, role) =>
  (pipeline.conditions ?? []).some((each) => each.name === name && (!role || each.labels?.role === role));

/** Whether no enumerator has led it yet. */
export const starts = (pipeline) =>
  pipeline.current === false && !pipeline.epoch && (pipeline.mode ?? "running") === "running";

/** Nodes and links of the mesh from channels, services and the pipeline. `rates`: bytes/s of each channel by "from>to". */
export function mesh(pipeline, channels, services, rates) {
  const members = new Map();
  for (const channel of channels) for (const name of [channel.from, channel.to]) members.set(name, true);
  members.set("enumerator", true);
  const names = [...members.keys()];
  const role = (name) => name.replace(/-\d+$/, "");
  const rate = (from, to) => rates.get(`${from}>${to}`) ?? null;
  const sum = (list) => (list.some((value) => value !== null) ? list.reduce((a, b) => a + (b ?? 0), 0) : null);
  const into = (name) =>
    sum(channels.filter((c) => c.to === name && role(c.from) === "reader").map((c) => rate(c.from, c.to)));
  const outOf = (name) =>
    sum(channels.filter((c) => c.from === name && role(c.to) === "writer").map((c) => rate(c.from, c.to)));
  const flow = (value) => (value === null ? "measuring" : value ? `${bytes(value)}/s` : "idle");
  const current = pipeline.current !== false;
  const stopped = CHOSEN.includes(pipeline.mode) || !current || pipeline.halted;
  const idle = !current ? "not known now" : pipeline.halted ? "halted" : pipeline.mode;
  const standby = services.filter((service) => service.role === "enumerator").length - 1;
  const missing = (role) => holds(pipeline, "CutlineNoLeader", role);
  const readers = names.filter((name) => role(name) === "reader").sort(byNumber);
  const writers = names.filter((name) => role(name) === "writer").sort(byNumber);
  const total = sum(writers.map(into));
  const good = stopped ? "off" : "good";
  const nodes = [
    {
      id: "source",
      kind: "source",
      title: "source",
      note: pipeline.definition?.source?.host ?? "MySQL",
      state: ["source", "busy_source"].includes(pipeline.waiting_for?.party) ? "bad" : current ? "good" : "off",
    },
    {
      id: "enumerator",
      kind: "enumerator",
      title: "enumerator",
      note: missing("enumerator")
        ? "not running"
        : !current || !pipeline.leader
          ? "not known now"
          : standby > 0
            ? `leads, ${standby} on standby`
            : "leads",
      state: missing("enumerator") ? "bad" : current && pipeline.leader ? "good" : "off",
    },
    ...readers.map((name) => ({
      id: name,
      kind: "reader",
      title: name,
      note: stopped ? idle : flow(outOf(name)),
      state: good,
    })),
    ...writers.map((name) => ({
      id: name,
      kind: "writer",
      title: name,
      note: stopped ? idle : flow(into(name)),
      state: good,
    })),
    {
      id: "store",
      kind: "store",
      title: "store",
      note: pipeline.checkpoint ? `checkpoint ${pipeline.checkpoint}` : "no checkpoint",
      state: holds(pipeline, "CutlineStoreAway") ? "bad" : "good",
    },
    {
      id: "spark_writer",
      kind: "spark_writer",
      title: "Spark writer",
      note: missing("spark_writer")
        ? "not running"
        : !current || !pipeline.spark_writer
          ? "not known now"
          : pipeline.publication
            ? `applied ${pipeline.publication}`
            : "ready",
      state: missing("spark_writer") ? "bad" : current && pipeline.spark_writer ? good : "off",
    },
    {
      id: "lake",
      kind: "lake",
      title: "lake",
      note: pipeline.publication ? `shows ${pipeline.publication}` : "empty",
      state: pipeline.publication ? "good" : "off",
    },
  ];
  const detail = (c) =>
    c.outstanding_bytes === null || c.outstanding_bytes === undefined
      ? ""
      : `${bytes(c.outstanding_bytes)} under way${c.credit_bytes ? ` of ${bytes(c.credit_bytes)} credit` : ""}`;
  const seen = new Set();
  const links = [
    ...readers.map((name) => ({ from: "source", to: name, rate: outOf(name) })),
    ...channels
      .filter((c) => role(c.from) === "reader" && role(c.to) === "writer")
      .map((c) => ({ from: c.from, to: c.to, rate: rate(c.from, c.to), detail: detail(c) })),
    ...writers.map((name) => ({ from: name, to: "store", rate: into(name) })),
    { from: "store", to: "spark_writer", rate: total },
    { from: "spark_writer", to: "lake", rate: total },
    ...readers.map((name) => ({ from: "enumerator", to: name, control: true })),
    ...writers.map((name) => ({ from: "enumerator", to: name, control: true })),
  ].filter((line) => !seen.has(`${line.from}>${line.to}`) && seen.add(`${line.from}>${line.to}`));
  return { nodes, links };
}

const byNumber = (a, b) => Number(a.split("-").at(-1)) - Number(b.split("-").at(-1));

/** 0..1 of a table's first reading, also of one that was held back in it; 1 once all chunks are read. */
export function progress(table) {
  if (["catch-up", "live", "dropped"].includes(table.phase)) return 1;
  const reads = ["waiting", "snapshot"].includes(table.phase);
  const [done, total] = table.splits_total
    ? [table.splits_done ?? 0, table.splits_total]
    : [table.rows_done ?? 0, table.rows_estimate];
  if (!total) return reads ? 0 : 1;
  return !reads && done >= total ? 1 : Math.min(0.99, done / total);
}

/** The rows that the lake table has; of one that is being read, those that were read so far. */
export const rowsOf = (table) => table.rows ?? table.rows_done;

const STATES = { waiting: 0, reading: 1, done: 2, lake: 3 };

/** The grid of a table's chunks: an index into parts/grid.js CELLS for each. */
export function cellsOf(grid) {
  const cells = new Uint8Array(grid.runs.at(-1)?.last ?? 0);
  for (const run of grid.runs) cells.fill(STATES[run.state] ?? 0, run.first - 1, run.last);
  return cells;
}

export function chunkText(grid, index) {
  const run = grid.runs.find((found) => found.first <= index + 1 && index + 1 <= found.last);
  return run?.reader ? `by ${run.reader}` : "";
}

/** A checkpoint's way as parts/timeline.js draws it. */
export function timelineOf(listed, detail) {
  const apply = detail.apply;
  return {
    number: detail.number,
    started_at: detail.started_at ?? listed.started_at ?? detail.written_at,
    completed_at: detail.written_at,
    published: detail.published,
    parts: (detail.members ?? [])
      .filter((part) => part.saved_at !== null || part.marker_at !== null)
      .map((part) => ({
        name: part.member,
        marker_at: part.marker_at,
        saved_at: part.saved_at,
        bytes: part.part_bytes,
      })),
    apply: apply && {
      from: apply.first,
      to: apply.last,
      seconds: apply.seconds,
      published_at: apply.published_at,
      tables: Object.entries(apply.tables ?? {}).map(([name, seconds]) => ({ name, seconds })),
    },
  };
}

/** A publication and what it shows of each table. */
export const cutOf = (cut) =>
  cut && {
    number: cut.number,
    sourceTime: cut.source_time,
    publishedAt: cut.published_at,
    position: cut.position,
    shown: cut.shown,
    tables: cut.tables.map((table) => ({
      name: table.table,
      snapshot: table.snapshot_id,
      text: table.shown
        ? "this cut"
        : table.snapshot_id === null
          ? `no rows yet (${table.state})`
          : `an older cut (${table.state})`,
      cause: table.cause,
      remedy: table.remedy,
    })),
  };
