// All tables of a pipeline: a virtual list with filter, search and sort.
import { ago, bytes, count, lasting, percent, plural, short, span } from "../format.js";
import { link, useQuery, useWidth } from "../hooks.js";
import { html, useMemo, useRef, useState } from "../html.js";
import { OPERATIONS, reasonAgainst } from "../operations.js";
import { Bar, Button, because, Empty, Menu, Phase, Search, Segments, sentence } from "../parts/basics.js";
import { DerivedTables } from "../parts/derivedtables.js";
import { VirtualTable } from "../parts/virtual.js";
import { PHASES } from "../rules.js";
import { progress, rowsOf } from "../shapes.js";

const SORTS = {
  table: (table) => table.table,
  phase: (table) => PHASES.indexOf(table.phase),
  progress,
  rows: (table) => rowsOf(table) ?? -1,
  inserts: (table) => table.inserts ?? -1,
  updates: (table) => table.updates ?? -1,
  deletes: (table) => table.deletes ?? -1,
  rate: (table) => table.rate_rows_per_second ?? 0,
  lag: (table) => table.lag_seconds ?? -1,
};

const CHANGES = ["inserts", "updates", "deletes"];
const WIDE = [
  { id: "table", title: "Table", width: "minmax(180px, 2.2fr)", sort: true },
  { id: "phase", title: "Phase", width: "118px", sort: true },
  { id: "progress", title: "Progress", width: "minmax(120px, 1.4fr)", sort: true },
  { id: "rows", title: "Rows", width: "90px", number: true, sort: true },
  ...CHANGES.map((id) => ({
    id,
    title: id.replace(/^./, (first) => first.toUpperCase()),
    width: "72px",
    number: true,
    sort: true,
  })),
  { id: "rate", title: "Rows/s", width: "70px", number: true, sort: true },
  { id: "lag", title: "Behind", width: "92px", number: true, sort: true },
  { id: "menu", title: html`<span class="hidden">Operations</span>`, width: "34px" },
];
const MIDDLE = WIDE.filter(({ id }) => !CHANGES.includes(id));
const NARROW = [
  { id: "table", title: "Table", width: "minmax(0, 1fr)", sort: true },
  { id: "phase", title: "Phase", width: "112px", sort: true },
];
const [NARROW_PX, MIDDLE_PX] = [720, 1060];

export function tableOperations(context, me, ask) {
  const { table } = context;
  const ids = { paused: ["resume_table"], quarantined: ["retry_table"], dropped: ["forget_table"] }[table.phase] ?? [
    "pause_table",
  ];
  if (table.phase !== "dropped") ids.push("read_table_again");
  if (["waiting", "snapshot", "catch-up"].includes(table.phase)) ids.push("cancel_table");
  for (const choice of table.choices ?? []) ids.push(`${choice}_lake`);
  const items = ids.map((id) => ({
    ...OPERATIONS[id],
    id,
    label: OPERATIONS[id].title,
    reason: reasonAgainst(OPERATIONS[id], context, me),
    run: () => ask(id, { table }),
  }));
  const remove = OPERATIONS.remove_table;
  return [
    ...items,
    null,
    {
      ...remove,
      id: "remove_table",
      label: remove.title,
      reason: reasonAgainst(remove, context, me),
      run: () => ask("remove_table", { table }),
    },
  ];
}

export function Tables({ pipeline, tables, me, ask }) {
  const [{ q: text, phase }, want] = useQuery({ q: "", phase: "all" });
  const [sorted, setSorted] = useState({ id: "table", down: false });
  const ref = useRef(null);
  const width = useWidth(ref);
  const narrow = width > 0 && width < NARROW_PX;
  const columns = narrow ? NARROW : width > 0 && width < MIDDLE_PX ? MIDDLE : WIDE;
  const items = useMemo(() => {
    const wanted = text.trim().toLowerCase();
    const value = SORTS[sorted.id];
    const sign = sorted.down ? -1 : 1;
    return tables
      .filter(
        (table) =>
          (phase === "all" || table.phase === phase) && (!wanted || table.table.toLowerCase().includes(wanted)),
      )
      .map((table) => [value(table), table])
      .sort(([a, x], [b, y]) => sign * (a < b ? -1 : a > b ? 1 : 0) || (x.table < y.table ? -1 : 1))
      .map(([, table]) => table);
  }, [tables, text, phase, sorted]);
  const counts = pipeline.tables;
  const sort = (id) => setSorted({ id, down: sorted.id === id ? !sorted.down : !["table", "phase"].includes(id) });
  const none = html`<span class="quiet">–</span>`;
  const cell = {
    table: (table) => html`<${Name} pipeline=${pipeline} table=${table} below=${narrow} />`,
    phase: (table) =>
      html`<${Phase} name=${table.phase} since=${table.since} /><div class="small quiet number cut-off">${lasting(table.since).split(",")[0]}</div>`,
    progress: (table) => html`<${Progress} table=${table} />`,
    rows: (table) =>
      table.phase === "dropped" ? none : html`<span title=${count(rowsOf(table))}>${short(rowsOf(table))}</span>`,
    ...Object.fromEntries(
      CHANGES.map((id) => [
        id,
        (table) => html`<span title=${`${count(table[id])} ${id} since the snapshot`}>${short(table[id])}</span>`,
      ]),
    ),
    rate: (table) => (table.rate_rows_per_second ? short(table.rate_rows_per_second) : none),
    lag: (table) =>
      html`<span title=${table.lag_bytes ? `${bytes(table.lag_bytes)} of binlog` : undefined}>${table.phase === "dropped" ? "–" : span(table.lag_seconds)}</span>`,
    menu: (table) =>
      html`<${Menu} label=${`Operations on ${table.table}`} items=${tableOperations({ pipeline, table }, me, ask)} />`,
  };
  const cells = (table) => columns.map(({ id }) => cell[id](table));
  return html`
    <section class="card" aria-label="Tables" ref=${ref}>
      <div class="card-head tables-head">
        <div class="row"><${Segments} label="Phase" value=${phase} onChange=${(chosen) => want({ phase: chosen })} options=${[["all", `All ${count(tables.length)}`], ...PHASES.filter((id) => counts[id]).map((id) => [id, `${id} ${count(counts[id])}`, id])]} /></div>
        <${Search} label="Find a table" value=${text} onInput=${(q) => want({ q })} />
        <${Button} icon="plus" onClick=${() => ask("add_table")}>Add a table<//>
      </div>
      ${
        items.length
          ? html`<${VirtualTable} label="Tables" items=${items} columns=${columns} row=${cells} keyOf=${(table) => table.table} height=${narrow ? 76 : 52} most=${Math.max(400, innerHeight - 330)} sorted=${sorted} onSort=${sort} />`
          : html`<${Empty} title=${tables.length ? "No such table" : "No tables yet"}>${tables.length ? "Change the filter above." : "The enumerator lists the tables as soon as it leads the pipeline."}<//>`
      }
      <p class="card-foot small quiet" role="status">${plural(items.length, "table")}${items.length < tables.length ? ` of ${count(tables.length)}` : ""}</p>
    </section>
    <${DerivedTables} pipeline=${pipeline} />`;
}

/** A table's name; beneath it the cause of what holds it up, else (with `below`) its rows. */
function Name({ pipeline, table, below }) {
  const behind = table.lag_seconds !== null && table.lag_seconds !== undefined;
  const about = table.cause
    ? html`<div class="small ${table.phase === "quarantined" ? "cause" : "quiet"} ${below ? "two-lines" : "cut-off"}" title=${because(table)}>${sentence(table.cause)}</div>`
    : below &&
      html`<div class="small quiet number cut-off">${short(rowsOf(table))} rows${progress(table) < 1 ? `, ${percent(progress(table))}` : behind ? `, ${span(table.lag_seconds)} behind` : ""}</div>`;
  return html`
    <div class="cut-off"><a class="cell-link" href=${link("pipelines", pipeline.name, "tables", table.table)} title=${table.table}>${table.table}</a>${about}</div>`;
}

function Progress({ table }) {
  const fraction = progress(table);
  const words = (text) => html`<span class="small quiet number">${text}</span>`;
  if (table.phase === "dropped") return words("kept as it was");
  if (["quarantined", "paused"].includes(table.phase) && fraction < 1) return words(`stopped at ${percent(fraction)}`);
  if (fraction === 1 && table.phase !== "catch-up")
    return words(table.last_change_at ? `changed ${ago(table.last_change_at)}` : "");
  const eta = table.eta_seconds ? `, ${span(table.eta_seconds)} to go` : "";
  const text = fraction < 1 ? `${percent(fraction)}${eta}` : "read, catching up";
  return html`<div class="progress-cell"><${Bar} fraction=${fraction} tone=${table.phase} label=${`${table.table}: ${text}`} /><span class="small quiet number cut-off">${text}</span></div>`;
}
