// The tables of a source as a list to choose from: its databases, and of each its tables with a tick, types and faults.
import { act, pages } from "../api.js";
import { bytes, count, plural, short } from "../format.js";
import { html, useEffect, useState } from "../html.js";
import { Icon } from "../icons.js";
import { Button, Search, sentence } from "./basics.js";
import { CheckField } from "./fields.js";

const MORE = 300;
const PAGE = 250;
const MANY = 12;

/** The glob that matches this table and no other. */
export const globOf = (table) => table.replace(/[*?[]/g, "[$&]");

/** The tables of a source that globs match, page by page: calls `take(all so far, whole)`. */
export async function findTables({ source, values, tables, signal }, take) {
  const about = { source, tables, ...(values ? { values } : {}) };
  let all = [];
  for await (const page of pages(`/v1/source/tables?limit=${PAGE}`, about, signal)) {
    all = [...all, ...page];
    take(all, false);
  }
  take(all, true);
}

/** The databases of a source and their tables that were opened: {schemas, opened, tables, toggle, failure}. */
export function useDatabases(source, values, ready) {
  const [schemas, setSchemas] = useState(null);
  const [failure, setFailure] = useState(null);
  const [opened, setOpened] = useState({});
  useEffect(() => {
    setSchemas(null);
    setOpened({});
    setFailure(null);
    if (ready) act("POST", "/v1/source/schemas", { source }).then(setSchemas, setFailure);
  }, [ready]);
  const put = (name, tables) => setOpened((before) => ({ ...before, [name]: tables }));
  const toggle = ({ name, glob }) => {
    setFailure(null);
    if (opened[name]) put(name, undefined);
    else findTables({ source, values, tables: [glob] }, (all) => put(name, all)).catch(setFailure);
  };
  return { schemas, opened, tables: Object.values(opened).flatMap((all) => all ?? []), toggle, failure };
}

/**
 * A row for each database: all of it by a tick, or its tables in the list. `ticked(glob)`, `onTick(glob, on)`;
 * `off(glob)`: it can't be ticked.
 */
export const Databases = ({ databases, ticked, onTick, off = () => false }) => html`
  <ul class="schemas">${databases.schemas?.map((schema) => {
    const open = Boolean(databases.opened[schema.name]);
    return html`<li key=${schema.name} class="row">
      <${CheckField} label=${`all of ${schema.name} (${plural(schema.tables, "table")})`} checked=${ticked(schema.glob)}
        disabled=${off(schema.glob)} onInput=${(on) => onTick(schema.glob, on)} />
      <${Button} size="small" kind="plain" icon=${open ? "up" : "down"} aria-expanded=${open ? "true" : "false"}
        label=${`Tables of ${schema.name}`} onClick=${() => databases.toggle(schema)}>Tables<//></li>`;
  })}</ul>`;

/**
 * `tables`: as /v1/source/tables has them. `ticked(name)`, `onTick(table, on)`; `off(name)`: why it can't be ticked.
 * `head`: what stands above the list.
 */
export function TickList({ tables, ticked, onTick, off = () => null, head }) {
  const [open, setOpen] = useState(null);
  const [most, setMost] = useState(MORE);
  const [wanted, setWanted] = useState("");
  const shown = tables.filter((table) => table.table.toLowerCase().includes(wanted.trim().toLowerCase()));
  return html`
    ${
      tables.length > MANY &&
      html`<div class="found-find"><${Search} label="Find in the list" value=${wanted} onInput=${setWanted} /></div>`
    }
    <div class="found" role="region" aria-label="Tables found" tabindex="0">
      <p class="small soft found-head" role="status">${head}</p>
      ${shown.slice(0, most).map(
        (table) => html`<${Row} key=${table.table} table=${table} ticked=${ticked(table.table)} off=${off(table.table)}
          open=${open === table.table} onOpen=${() => setOpen(open === table.table ? null : table.table)}
          onTick=${(on) => onTick(table, on)} />`,
      )}
      ${
        shown.length > most &&
        html`<p class="found-head"><${Button} size="small" kind="plain" icon="down"
          onClick=${() => setMost(most + MORE)}>
          Show ${count(Math.min(MORE, shown.length - most))} more of ${count(shown.length - most)}<//></p>`
      }
    </div>`;
}

function Row({ table, ticked, off, open, onOpen, onTick }) {
  const size = [table.rows === null ? "" : `about ${short(table.rows)} rows`, table.bytes ? bytes(table.bytes) : ""];
  return html`
    <div class="found-table">
      <div class="found-row">
        <input type="checkbox" aria-label=${`Copy ${table.table}`} checked=${ticked} disabled=${Boolean(off)}
          title=${off} onChange=${(event) => onTick(event.target.checked)} />
        <button type="button" aria-expanded=${open ? "true" : "false"} onClick=${onOpen}>
          <b class="cut-off">${table.table}</b>
          <span class="small quiet number nowrap">${off ?? size.filter(Boolean).join(", ")}</span>
          <${Icon} name=${open ? "up" : "down"} size=${12} /></button>
      </div>
      ${table.faults.map(
        ({ detail, remedy }) => html`<p key=${detail} class="small cause">${sentence(detail)} ${sentence(remedy)}</p>`,
      )}
      ${open && html`<${Columns} table=${table} />`}
    </div>`;
}

const Columns = ({ table }) => html`
  <table class="list types"><thead><tr><th>Column</th><th>Source</th><th>Lake</th></tr></thead>
    <tbody>${table.columns.map(
      ({ name, type, lake_type: lake }) => html`<tr key=${name}>
        <td class="mono">${name}${table.key.includes(name) ? html` <span class="quiet">key</span>` : null}</td>
        <td class="soft">${type}</td><td class="soft">${lake ?? "none"}</td></tr>`,
    )}</tbody></table>`;
