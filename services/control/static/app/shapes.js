// The API's answers in the form that the parts draw. The only place that knows both.
import { bytes, count, now, plural, short, span } from "./format.js";

/** One word for what a pipeline does, and one sentence about it. */
export function state(pipeline) {
  const mode = pipeline.mode ?? "running";
  const fresh = pipeline.source_time ? span(now() - pipeline.source_time) : null;
  if (mode === "deleting")
    return {
      mode,
      sentence: "It is being deleted: its lake tables, if that was asked for, then its files in the store.",
    };
  if (mode === "stopped")
    return { mode, sentence: `Stopped at checkpoint ${short(pipeline.checkpoint)}; the lake keeps what it shows.` };
  if (pipeline.halted) return { mode: "halted", sentence: "Halted until a person acts." };
  if (mode === "paused")
    return {
      mode,
      sentence: `Paused; the lake shows the source as it was ${fresh ?? "at the last publication"}${fresh ? " ago" : ""}.`,
    };
  if (starts(pipeline))
    return { mode: "waiting", word: "starting", sentence: "An enumerator takes it up within seconds." };
  if (pipeline.current === false)
    return {
      mode: "unknown",
      word: "no leader",
      sentence: "No enumerator leads it now, so its state is old. Start the services, or see what they log.",
    };
  if (pipeline.waiting_for && pipeline.waiting_for.party !== "person")
    return {
      mode: "waiting",
      word: "waiting",
      sentence: `Waiting for ${pipeline.waiting_for.what}${fresh ? `; the lake shows the source as it was ${fresh} ago` : ""}.`,
    };
  const total = Object.values(pipeline.tables ?? {}).reduce((a, b) => a + b, 0);
  const live = pipeline.tables?.live ?? 0;
  if (total && live === total)
    return {
      mode,
      word: "live",
      sentence: fresh ? `All tables are live; the lake is ${fresh} behind the source.` : "All tables are live.",
    };
  return {
    mode,
    word: "running",
    sentence: fresh
      ? `${count(live)} of ${plural(total, "table")} are live; the lake is ${fresh} behind the source.`
      : `${count(live)} of ${plural(total, "table")} are live.`,
  };
}

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
  const stopped =
    ["paused", "stopped", "deleting"].includes(pipeline.mode) || pipeline.current === false || pipeline.halted;
  const idle = pipeline.current === false ? "no leader" : pipeline.halted ? "halted" : pipeline.mode;
  const standby = services.filter((service) => service.role === "enumerator").length - 1;
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
      state: ["source", "busy_source"].includes(pipeline.waiting_for?.party) ? "bad" : "good",
    },
    {
      id: "enumerator",
      kind: "enumerator",
      title: "enumerator",
      note: pipeline.leader ? (standby > 0 ? `leads, ${standby} on standby` : "leads") : "no leader",
      state: pipeline.leader && pipeline.current !== false ? "good" : starts(pipeline) ? "off" : "bad",
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
      state: "good",
    },
    {
      id: "spark_writer",
      kind: "spark_writer",
      title: "Spark writer",
      note: pipeline.spark_writer
        ? pipeline.publication
          ? `applied ${pipeline.publication}`
          : "ready"
        : starts(pipeline)
          ? ""
          : "not running",
      state: pipeline.spark_writer ? good : starts(pipeline) ? "off" : "bad",
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

/** 0..1 of a table's first phases; 1 once all chunks are read. */
export function progress(table) {
  if (!["waiting", "snapshot"].includes(table.phase)) return 1;
  if (table.splits_total) return Math.min(0.99, (table.splits_done ?? 0) / table.splits_total);
  return table.rows_estimate ? Math.min(0.99, (table.rows_done ?? 0) / table.rows_estimate) : 0;
}

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
