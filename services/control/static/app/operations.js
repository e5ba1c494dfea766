// Every live operation: what it is called, when it is possible, what it will do, and the call that asks for it.
import { pipelinePath } from "./api.js";
import { label, plural, span } from "./format.js";
import { RULES } from "./rules.js";

const ROLES = ["viewer", "operator", "admin"];
export const may = (me, role) => ROLES.indexOf(me?.role ?? "viewer") >= ROLES.indexOf(role);

const at = (context, rest) => pipelinePath(context.pipeline.name, rest);
const tableAt = (context, rest) => at(context, `/tables/${encodeURIComponent(context.table.table)}${rest}`);
const stateOf = (pipeline) =>
  (pipeline.mode ?? "running") === "running" && pipeline.halted ? "halted" : (pipeline.mode ?? "running");
/** Why the API would refuse it now, by the rules that the leader has too; null if it would not. */
const byRules =
  (name) =>
  ({ pipeline, table }) =>
    RULES[name].states[stateOf(pipeline)] ??
    (table ? RULES[name].phases[table.phase]?.replace("{table}", table.table) : null) ??
    null;
/** The tables that a person typed and ticked, as globs. */
const named = ({ table, ticked }) => [...(ticked ?? []), ...(table ? [table] : [])];
const limit = (text) => (text === "" || text === null || text === undefined ? null : Number(text));

/**
 * {id, title, short, icon, tone, role, when(context) -> reason or null, says(context, values) -> sentences, fields,
 * send(context, values) -> [method, path, body, headers]}
 * `context`: {pipeline, table?, checkpoint?, version?}; `values`: of the fields, by name.
 */
export const OPERATIONS = {
  pause: {
    title: "Pause the pipeline",
    short: "Pause",
    note: "hold everything where it is",
    icon: "pause",
    tone: "paused",
    role: RULES.pause.role,
    when: byRules("pause"),
    says: ({ pipeline }) => [
      "Readers stop reading the source: snapshots and the binlog wait at their positions.",
      "The lake keeps what it shows now; nothing is lost, and resuming goes on from here.",
      `A long pause needs the source to keep its binlog${pipeline.binlog_left_seconds ? `: it is kept for about ${span(pipeline.binlog_left_seconds)} more` : ""}.`,
    ],
    send: (context) => ["POST", at(context, "/pause")],
  },
  resume: {
    title: "Resume the pipeline",
    short: "Resume",
    note: "go on from where it was paused",
    icon: "play",
    tone: "live",
    role: RULES.resume.role,
    when: byRules("resume"),
    says: () => [
      "Readers go on from their positions; the lake catches up with the source.",
      "Tables that were paused one by one stay paused.",
    ],
    send: (context) => ["POST", at(context, "/resume")],
  },
  stop: {
    title: "Stop with a savepoint",
    short: "Stop",
    note: "take a savepoint, then end the mesh",
    icon: "stop",
    tone: "paused",
    role: RULES.stop.role,
    when: byRules("stop"),
    says: () => [
      "A last checkpoint is taken and kept as a savepoint, with a tag on each live table.",
      "Then the mesh ends. Starting again goes on from that savepoint, if the source still has its binlog.",
    ],
    fields: [{ name: "savepoint", label: "Name of the savepoint", optional: true, placeholder: "before-upgrade" }],
    send: (context, values) => ["POST", at(context, "/stop"), { savepoint: values.savepoint || null }],
  },
  start: {
    title: "Start the pipeline",
    short: "Start",
    note: "go on from the last checkpoint",
    icon: "play",
    tone: "live",
    role: RULES.start.role,
    when: byRules("start"),
    says: ({ pipeline }) => [
      `A new epoch begins from checkpoint ${label(pipeline.checkpoint)}.`,
      "The lake catches up with everything that changed since.",
    ],
    send: (context) => ["POST", at(context, "/start")],
  },
  restore: {
    title: "Restore a checkpoint",
    short: "Restore",
    note: "go back to an earlier state, and on from there",
    icon: "back",
    tone: "quarantined",
    role: RULES.restore.role,
    when: byRules("restore"),
    says: ({ checkpoint, pipeline }) => [
      `A new epoch begins from checkpoint ${label(checkpoint?.number)}${pipeline.checkpoint > checkpoint?.number ? `; those after it, up to ${label(pipeline.checkpoint)}, leave the chain` : ""}.`,
      "The binlog is read again from there: the source must still have it.",
      "The lake keeps what it shows until the pipeline has passed that point again.",
    ],
    send: (context, values) => [
      "POST",
      at(context, "/restore"),
      { checkpoint: context.checkpoint?.number ?? limit(values.checkpoint) },
    ],
  },
  read_again: {
    title: "Read every table again",
    short: "Read again",
    note: "new generations, from the source's present position",
    icon: "again",
    tone: "snapshot",
    role: RULES.read_again.role,
    when: byRules("read_again"),
    says: ({ pipeline }) => [
      "Every table begins its next generation: all rows are read from the source again, and the binlog from its present position on.",
      "The lake shows its present content until the new rows are complete; rows that vanished at the source vanish then.",
      ...(["paused", "stopped"].includes(pipeline.mode) ? ["It begins once the pipeline goes on."] : []),
    ],
    send: (context) => ["POST", at(context, "/read-again")],
  },
  checkpoint: {
    title: "Take a checkpoint now",
    short: "Checkpoint now",
    note: "don't wait for the interval",
    icon: "cut",
    tone: "snapshot",
    role: RULES.checkpoint.role,
    when: byRules("checkpoint"),
    says: () => [
      "Markers go through the mesh at once; the lake shows that cut as soon as it is applied.",
      "Nothing stops for it.",
    ],
    send: (context) => ["POST", at(context, "/checkpoints"), {}],
  },
  savepoint: {
    title: "Take a savepoint",
    short: "Savepoint",
    note: "a checkpoint that is kept, with tags in the lake",
    icon: "flag",
    tone: "snapshot",
    role: RULES.savepoint.role,
    when: byRules("savepoint"),
    says: ({ pipeline }) => [
      "A checkpoint is taken and kept, with a tag on each live table.",
      `The newest ${plural(pipeline.definition?.retention?.savepoints ?? 10, "savepoint")} are kept; an older one may go.`,
    ],
    fields: [{ name: "name", label: "Name", optional: true, placeholder: "end-of-quarter" }],
    send: (context, values) => ["POST", at(context, "/savepoints"), { name: values.name || null }],
  },
  delete_savepoint: {
    title: "Delete a savepoint",
    short: "Delete",
    icon: "bin",
    tone: "quarantined",
    role: RULES.delete_savepoint.role,
    danger: true,
    when: byRules("delete_savepoint"),
    says: ({ checkpoint }) => [
      `Savepoint ${label(checkpoint.number)}${checkpoint.name ? ` (${checkpoint.name})` : ""} can no longer be restored.`,
      "Its tags go from the lake tables; their files go after the grace period if no other snapshot needs them.",
    ],
    send: (context) => ["DELETE", at(context, `/savepoints/${context.checkpoint.number}`)],
  },
  limits: {
    title: "Set the limits",
    short: "Limits",
    note: "how fast the source may be read",
    icon: "gauge",
    tone: "snapshot",
    role: RULES.limits.role,
    when: byRules("limits"),
    says: () => [
      "All readers together keep these limits on SELECT from now on; the binlog is not limited.",
      "Leave a field empty for no limit.",
    ],
    fields: [
      {
        name: "rows_per_second",
        label: "Rows a second",
        type: "number",
        optional: true,
        initial: ({ pipeline }) => pipeline.limits?.rows_per_second ?? "",
      },
      {
        name: "bytes_per_second",
        label: "Bytes a second",
        type: "number",
        optional: true,
        initial: ({ pipeline }) => pipeline.limits?.bytes_per_second ?? "",
      },
    ],
    send: (context, values) => [
      "PUT",
      at(context, "/limits"),
      { rows_per_second: limit(values.rows_per_second), bytes_per_second: limit(values.bytes_per_second) },
    ],
  },
  add_table: {
    title: "Add a table",
    short: "Add a table",
    note: "with its history, while the others go on",
    icon: "plus",
    tone: "live",
    role: RULES.add_table.role,
    when: byRules("add_table"),
    says: (_, values) => [
      `${named(values).join(", ") || "The table"} ${named(values).length > 1 ? "join" : "joins"} with history: read in chunks, catching up, then live.`,
      "The other tables go on. The definition gets a new version.",
    ],
    fields: [
      {
        name: "table",
        label: "Table",
        placeholder: "shop.orders",
        missing: (values) => !named(values).length,
        hint: "database.table, as the source spells it, or a pattern as shop.*",
      },
      { name: "ticked", type: "tables", initial: () => [] },
    ],
    send: (context, values) => {
      const [first, ...more] = named(values);
      if (!more.length) return ["POST", at(context, "/tables"), { table: first }];
      const { tables } = context.pipeline.definition;
      const kept = tables.filter((pattern) => !named(values).some((glob) => pattern === `!${glob}`));
      const note = encodeURIComponent(`added ${named(values).join(", ")}`.slice(0, 500));
      const headers = { "If-Match": `"${context.pipeline.version}"` };
      return ["PATCH", at(context, `?note=${note}`), { tables: [...kept, ...named(values)] }, headers];
    },
  },
  remove_table: {
    title: "Remove the table",
    short: "Remove",
    note: "stop copying it; its lake table stays",
    icon: "minus",
    tone: "quarantined",
    role: RULES.remove_table.role,
    danger: true,
    when: byRules("remove_table"),
    says: ({ table }) => [
      `${table.table} is no longer copied. Its lake table stays, with the content of the last publication.`,
      "The definition gets a new version; adding the table later reads it from the beginning.",
    ],
    send: (context) => ["DELETE", tableAt(context, "")],
  },
  pause_table: {
    title: "Pause the table",
    short: "Pause",
    note: "its lake table keeps its content",
    icon: "pause",
    tone: "paused",
    role: RULES.pause_table.role,
    when: byRules("pause_table"),
    says: ({ table }) => [
      `${table.table} stays at its last publication in the lake.`,
      "All other tables go on. Resuming brings it back into the common cut.",
    ],
    send: (context) => ["POST", tableAt(context, "/pause")],
  },
  resume_table: {
    title: "Resume the table",
    short: "Resume",
    note: "bring it back into the cut",
    icon: "play",
    tone: "live",
    role: RULES.resume_table.role,
    when: byRules("resume_table"),
    says: ({ table }) => [`${table.table} catches up with the source, then shows the same cut as the other tables.`],
    send: (context) => ["POST", tableAt(context, "/resume")],
  },
  read_table_again: {
    title: "Read the table again",
    short: "Read again",
    note: "a new generation, from its beginning",
    icon: "again",
    tone: "snapshot",
    role: RULES.read_table_again.role,
    when: byRules("read_table_again"),
    says: ({ table }) => [
      `${table.table} begins generation ${label((table.generation ?? 1) + 1)}: ${table.rows_estimate ? `about ${plural(table.rows_estimate, "row")} are` : "all rows are"} read from the source again.`,
      "The lake shows its present rows until the new ones are complete, then changes over in one publication.",
    ],
    send: (context) => ["POST", tableAt(context, "/read-again")],
  },
  retry_table: {
    title: "Retry the table",
    short: "Retry",
    note: "after its fault is fixed",
    icon: "again",
    tone: "live",
    role: RULES.retry_table.role,
    when: byRules("retry_table"),
    says: ({ table }) => [
      `Cutline tries ${table.table} again with the next checkpoint.`,
      ...(table.cause
        ? [
            `It was quarantined because: ${table.cause}.`,
            "If that is not fixed, it is quarantined again; the other tables don't notice.",
          ]
        : []),
    ],
    send: (context) => ["POST", tableAt(context, "/retry")],
  },
  forget_table: {
    title: "Forget the table",
    short: "Forget",
    note: "take it off the list; its lake table stays",
    icon: "bin",
    tone: "dropped",
    role: RULES.forget_table.role,
    when: byRules("forget_table"),
    says: ({ table }) => [`${table.table} disappears from this list. Its lake table stays as it is.`],
    send: (context) => ["POST", tableAt(context, "/forget")],
  },
  cancel_table: {
    title: "Cancel adding the table",
    short: "Cancel",
    note: "while it is not live yet",
    icon: "cross",
    tone: "quarantined",
    role: RULES.cancel_table.role,
    when: byRules("cancel_table"),
    says: ({ table }) => [
      `Reading ${table.table} ends, and the definition excludes it.`,
      "Nothing of it was shown in the lake yet, if this is its first generation.",
    ],
    send: (context) => ["POST", tableAt(context, "/cancel")],
  },
  accept_lake: {
    title: "Keep the commits of others",
    short: "Accept",
    note: "keep what another user committed to the lake table",
    icon: "check",
    tone: "live",
    role: RULES.lake.role,
    when: byRules("lake"),
    says: ({ table }) => [
      `What another user committed to the lake table ${table.table} stays, and Cutline goes on from it.`,
      "Rows that were changed there may differ from the source until the source changes them.",
    ],
    send: (context) => ["POST", tableAt(context, "/lake"), { choice: "accept", seen: context.table.seen ?? null }],
  },
  overwrite_lake: {
    title: "Overwrite the commits of others",
    short: "Overwrite",
    note: "bring back what the source has",
    icon: "back",
    tone: "quarantined",
    role: RULES.lake.role,
    danger: true,
    when: byRules("lake"),
    says: ({ table }) => [
      `What another user committed to the lake table ${table.table} is replaced by what the source has.`,
    ],
    send: (context) => ["POST", tableAt(context, "/lake"), { choice: "overwrite", seen: context.table.seen ?? null }],
  },
  cancel_command: {
    title: "Cancel the command",
    short: "Cancel",
    icon: "cross",
    tone: "paused",
    role: "operator",
    when: byRules("cancel_command"),
    says: ({ command }) => [`Command ${label(command.number)} is withdrawn, unless it has had an effect that lasts.`],
    send: (context) => ["POST", at(context, `/commands/${context.command.number}/cancel`)],
  },
  restore_version: {
    title: "Bring this version back",
    short: "Restore",
    icon: "back",
    tone: "snapshot",
    role: RULES.restore_version.role,
    when: byRules("restore_version"),
    says: ({ version, pipeline }) => [
      `A new version is made with the content of version ${label(version)}; version ${label(pipeline.version)} stays in the history.`,
      "It is in force after the next checkpoint.",
    ],
    send: (context) => ["POST", at(context, `/versions/${context.version}/restore`)],
  },
  delete: {
    title: "Delete the pipeline",
    short: "Delete",
    note: "end it and remove its state",
    icon: "bin",
    tone: "quarantined",
    role: RULES.delete.role,
    danger: true,
    when: byRules("delete"),
    says: (_, values) => [
      "The mesh ends, and the pipeline's journal, checkpoints and staged files are deleted from the store.",
      values.purge
        ? "The lake tables that it wrote are dropped, with their data."
        : "The lake tables stay, with the content of the last publication.",
      "This can't be undone.",
    ],
    fields: [
      { name: "purge", label: "Also drop the lake tables that it wrote", type: "check" },
      {
        name: "confirm",
        label: "Type the pipeline's name to confirm",
        placeholder: ({ pipeline }) => pipeline.name,
        required: true,
        equals: ({ pipeline }) => pipeline.name,
      },
    ],
    send: (context, values) => ["DELETE", at(context, values.purge ? "?purge=true" : "")],
  },
  leave_lake: {
    title: "Delete without the lake tables",
    short: "Leave the lake",
    note: "end a purge whose lake can't be reached",
    icon: "cross",
    tone: "quarantined",
    role: RULES.leave_lake.role,
    danger: true,
    when: byRules("leave_lake"),
    says: () => [
      "Lake tables that are not dropped yet stay, with the content of the last publication.",
      "The deletion goes on without them.",
    ],
    send: (context) => ["POST", at(context, "/leave-lake")],
  },
};

/* An order about a table that has no words of its own above is offered with those of its class. */
for (const [id, { act, does, role }] of Object.entries(RULES)) {
  if (!act || OPERATIONS[id]) continue;
  const title = `${act.replace("-", " ")} the table`;
  OPERATIONS[id] = {
    title,
    short: act,
    icon: "again",
    tone: "paused",
    role,
    when: byRules(id),
    says: () => [does],
    send: (context) => ["POST", tableAt(context, `/${act}`)],
  };
}

/** Why the operation can't be asked for now; null if it can. */
export function reasonAgainst(operation, context, me) {
  if (!may(me, operation.role)) return `needs the role ${operation.role}; you are ${me?.role ?? "not logged in"}`;
  return operation.when?.(context) ?? null;
}
