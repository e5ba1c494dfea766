// Choosing tables: patterns on database.table, and what they match at the source, each table with its lake types.
import { act, pages } from "../api.js";
import { bytes, count, plural, short } from "../format.js";
import { html, useEffect, useState } from "../html.js";
import { Icon } from "../icons.js";
import { Button, Failure, Search, sentence } from "./basics.js";
import { CheckField, TextField } from "./fields.js";

const MORE = 300;
const PAGE = 250;
const MANY = 12;

export function TablePicker({ source, values, ready, patterns, error, onChange }) {
  const [text, setText] = useState("");
  const [schemas, setSchemas] = useState(null);
  const [found, setFound] = useState(null);
  const [failure, setFailure] = useState(null);
  const [open, setOpen] = useState(null);
  const [shown, setShown] = useState(MORE);
  const [whole, setWhole] = useState(false);
  const [wanted, setWanted] = useState("");
  useEffect(() => {
    if (!ready) {
      setSchemas(null);
      setFound(null);
      return;
    }
    act("POST", "/v1/source/schemas", { source }).then(setSchemas, setFailure);
  }, [ready]);
  useEffect(() => {
    if (!ready || !patterns.length) {
      setFound(null);
      return undefined;
    }
    const abort = new AbortController();
    setFailure(null);
    setWhole(false);
    (async () => {
      let all = [];
      for await (const page of pages(
        `/v1/source/tables?limit=${PAGE}`,
        { source, tables: patterns, ...(values ? { values } : {}) },
        abort.signal,
      )) {
        all = [...all, ...page];
        setFound(all);
      }
      setWhole(true);
    })().catch((failed) => failed.name === "AbortError" || setFailure(failed));
    return () => abort.abort();
  }, [ready, patterns.join("\n")]);
  const add = (pattern) => {
    if (pattern && !patterns.includes(pattern)) onChange([...patterns, pattern]);
    setText("");
  };
  const looked = found?.filter((table) => table.table.toLowerCase().includes(wanted.trim().toLowerCase()));
  const toggle = (pattern, on) => onChange(on ? [...patterns, pattern] : patterns.filter((item) => item !== pattern));
  return html`
    <div class="row pattern-row"><${TextField} label="Pattern" hint=${html`database.table with <code>*</code>; a leading <code>!</code> excludes, backticks hold a name with a dot. Enter adds it.`} placeholder="shop.*" value=${text} error=${error} onInput=${setText}
      onKeyDown=${(event) => {
        if (event.key === "Enter") {
          event.preventDefault();
          add(text.trim());
        }
      }} /><${Button} icon="plus" reason=${text.trim() ? null : "type a pattern first"} onClick=${() => add(text.trim())}>Add<//></div>
    ${patterns.length > 0 && html`<ul class="patterns" aria-label="Patterns">${patterns.map((pattern) => html`<li key=${pattern} class="mono">${pattern}<button type="button" aria-label=${`Remove ${pattern}`} onClick=${() => toggle(pattern, false)}><${Icon} name="cross" size=${12} /></button></li>`)}</ul>`}
    ${!ready && html`<p class="quiet small">Test the connection to choose from the databases and to see which tables match.</p>`}
    ${schemas && html`<div class="schemas">${schemas.map(({ name, tables, glob }) => html`<${CheckField} key=${name} label=${`all of ${name} (${plural(tables, "table")})`} checked=${patterns.includes(glob)} onInput=${(on) => toggle(glob, on)} />`)}</div>`}
    ${failure && html`<${Failure} error=${failure} />`}
    ${
      found &&
      html`
      ${found.length > MANY && html`<div class="found-find"><${Search} label="Find a table" value=${wanted} onInput=${setWanted} /></div>`}
      <div class="found" role="region" aria-label="Tables found" tabindex="0"><p class="small soft found-head" role="status">${plural(found.length, "table")} ${whole ? (found.length === 1 ? "matches" : "match") : "so far …"}</p>
        ${looked.slice(0, shown).map(
          (table) => html`
          <div class="found-table" key=${table.table}>
            <button type="button" aria-expanded=${open === table.table ? "true" : "false"} onClick=${() => setOpen(open === table.table ? null : table.table)}>
              <${Icon} name=${open === table.table ? "down" : "arrow"} size=${12} /><b class="cut-off">${table.table}</b><span class="small quiet number nowrap">${table.rows === null ? "" : `about ${short(table.rows)} rows`}${table.bytes ? `, ${bytes(table.bytes)}` : ""}</span></button>
            ${table.faults.map((fault) => html`<p key=${fault.detail} class="small cause">${sentence(fault.detail)} ${sentence(fault.remedy)}</p>`)}
            ${open === table.table && html`<table class="list types"><thead><tr><th>Column</th><th>Source</th><th>Lake</th></tr></thead><tbody>${table.columns.map((column) => html`<tr key=${column.name}><td class="mono">${column.name}${table.key.includes(column.name) ? html` <span class="quiet">key</span>` : null}</td><td class="soft">${column.type}</td><td class="soft">${column.lake_type ?? "none"}</td></tr>`)}</tbody></table>`}
          </div>`,
        )}
        ${looked.length > shown && html`<p class="found-head"><${Button} size="small" kind="plain" icon="down" onClick=${() => setShown(shown + MORE)}>Show ${count(Math.min(MORE, looked.length - shown))} more of ${count(looked.length - shown)}<//></p>`}
      </div>`
    }`;
}
