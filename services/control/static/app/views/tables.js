// All tables of a pipeline: a virtual list with filter, search and sort.
import { ago, bytes, count, percent, plural, short, span } from "../format.js";
import { link, useWidth } from "../hooks.js";
import { html, useMemo, useRef, useState } from "../html.js";
import { OPERATIONS, reasonAgainst } from "../operations.js";
import { Bar, Button, because, Empty, Menu, Phase, Search, Segments } from "../parts/basics.js";
import { VirtualTable } from "../parts/virtual.js";
import { PHASES } from "../rules.js";
import { progress } from "../shapes.js";

const SORTS = {
  table: (table) => table.table,
  phase: (table) => PHASES.indexOf(table.phase),
  progress,
  rows: (table) => table.rows_done ?? -1,
  rate: (table) => table.rate_rows_per_second ?? 0,
  lag: (table) => table.lag_seconds ?? -1,
};

const WIDE = [
  { id: "table", title: "Table", width: "minmax(180px, 2.2fr)", sort: true },
  { id: "phase", title: "Phase", width: "118px", sort: true },
  { id: "progress", title: "Progress", width: "minmax(120px, 1.4fr)", sort: true },
  { id: "rows", title: "Rows", width: "104px", number: true, sort: true },
  { id: "rate", title: "Rows/s", width: "76px", number: true, sort: true },
  { id: "lag", title: "Behind", width: "92px", number: true, sort: true },
  { id: "menu", title: html`<span class="hidden">Operations</span>`, width: "34px" },
];
const NARROW = [
  { id: "table", title: "Table", width: "minmax(0, 1fr)", sort: true },
  { id: "phase", title: "Phase", width: "112px", sort: true },
];

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

export function Tables({ pipeline, tables, me, ask, query }) {
  const [text, setText] = useState("");
  const [phase, setPhase] = useState(query.get("phase") ?? "all");
  const [sorted, setSorted] = useState({ id: "table", down: false });
  const ref = useRef(null);
  const width = useWidth(ref);
  const narrow = width > 0 && width < 720;
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
  const cells = (table) =>
    narrow
      ? [html`<${Name} pipeline=${pipeline} table=${table} below />`, html`<${Phase} name=${table.phase} />`]
      : [
          html`<${Name} pipeline=${pipeline} table=${table} />`,
          html`<${Phase} name=${table.phase} />`,
          html`<${Progress} table=${table} />`,
          table.phase === "dropped" ? html`<span class="quiet">–</span>` : short(table.rows_done),
          table.rate_rows_per_second ? short(table.rate_rows_per_second) : html`<span class="quiet">–</span>`,
          html`<span title=${table.lag_bytes ? `${bytes(table.lag_bytes)} of binlog` : undefined}>${table.phase === "dropped" ? "–" : span(table.lag_seconds)}</span>`,
          html`<${Menu} label=${`Operations on ${table.table}`} items=${tableOperations({ pipeline, table }, me, ask)} />`,
        ];
  return html`
    <section class="card" aria-label="Tables" ref=${ref}>
      <div class="card-head tables-head">
        <div class="row"><${Segments} label="Phase" value=${phase} onChange=${setPhase} options=${[["all", `All ${count(tables.length)}`], ...PHASES.filter((id) => counts[id]).map((id) => [id, `${id} ${count(counts[id])}`, id])]} /></div>
        <${Search} label="Find a table" value=${text} onInput=${setText} />
        <${Button} icon="plus" onClick=${() => ask("add_table")}>Add a table<//>
      </div>
      ${
        items.length
          ? html`<${VirtualTable} label="Tables" items=${items} columns=${narrow ? NARROW : WIDE} row=${cells} keyOf=${(table) => table.table} height=${narrow ? 58 : 46} most=${Math.max(400, innerHeight - 330)} sorted=${sorted} onSort=${sort} />`
          : html`<${Empty} title=${tables.length ? "No such table" : "No tables yet"}>${tables.length ? "Change the filter above." : "The enumerator lists the tables as soon as it leads the pipeline."}<//>`
      }
      <p class="card-foot small quiet" role="status">${plural(items.length, "table")}${items.length < tables.length ? ` of ${count(tables.length)}` : ""}</p>
    </section>`;
}

const Name = ({ pipeline, table, below }) => html`
  <div class="cut-off"><a class="cell-link" href=${link("pipelines", pipeline.name, "tables", table.table)} title=${table.table}>${table.table}</a>
    ${
      below
        ? html`<div class="small quiet number cut-off">${short(table.rows_done)} rows${progress(table) < 1 ? `, ${percent(progress(table))}` : table.lag_seconds !== null && table.lag_seconds !== undefined ? `, ${span(table.lag_seconds)} behind` : ""}</div>`
        : table.cause &&
          html`<div class="small ${table.phase === "quarantined" ? "cause" : "quiet"} cut-off" title=${because(table)}>${table.cause}</div>`
    }
  </div>`;

function Progress({ table }) {
  const fraction = progress(table);
  const eta = table.eta_seconds ? `, ${span(table.eta_seconds)} to go` : "";
  if (fraction === 1 && table.phase !== "catch-up")
    return html`<span class="small quiet number">${table.phase === "dropped" ? "kept as it was" : table.last_change_at ? `changed ${ago(table.last_change_at)}` : ""}</span>`;
  const text = fraction < 1 ? `${percent(fraction)}${eta}` : "read, catching up";
  return html`<div class="progress-cell"><${Bar} fraction=${fraction} tone=${table.phase} label=${`${table.table}: ${text || table.phase}`} /><span class="small quiet number cut-off">${text}</span></div>`;
}
