// Choosing tables: patterns on database.table, and what they match at the source, each table with its lake types.
import { act } from "../api.js";
import { bytes, count, plural, short } from "../format.js";
import { html, useEffect, useState } from "../html.js";
import { Icon } from "../icons.js";
import { Button, Failure, sentence } from "./basics.js";
import { CheckField, TextField } from "./fields.js";

const MORE = 300;

export function TablePicker({ source, values, ready, patterns, error, onChange }) {
  const [text, setText] = useState("");
  const [schemas, setSchemas] = useState(null);
  const [found, setFound] = useState(null);
  const [failure, setFailure] = useState(null);
  const [open, setOpen] = useState(null);
  const [shown, setShown] = useState(MORE);
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
    let over = false;
    setFailure(null);
    act("POST", "/v1/source/tables", { source, tables: patterns, ...(values ? { values } : {}) }).then((tables) => over || setFound(tables), (failed) => over || setFailure(failed));
    return () => { over = true; };
  }, [ready, patterns.join("\n")]);
  const add = (pattern) => {
    if (pattern && !patterns.includes(pattern)) onChange([...patterns, pattern]);
    setText("");
  };
  const toggle = (pattern, on) => onChange(on ? [...patterns, pattern] : patterns.filter((item) => item !== pattern));
  return html`
    <div class="row pattern-row"><${TextField} label="Pattern" hint=${html`database.table with <code>*</code>; a leading <code>!</code> excludes. Enter adds it.`} placeholder="shop.*" value=${text} error=${error} onInput=${setText}
      onKeyDown=${(event) => { if (event.key === "Enter") { event.preventDefault(); add(text.trim()); } }} /><${Button} icon="plus" reason=${text.trim() ? null : "type a pattern first"} onClick=${() => add(text.trim())}>Add<//></div>
    ${patterns.length > 0 && html`<ul class="patterns" aria-label="Patterns">${patterns.map((pattern) => html`<li key=${pattern} class="mono">${pattern}<button type="button" aria-label=${`Remove ${pattern}`} onClick=${() => toggle(pattern, false)}><${Icon} name="cross" size=${12} /></button></li>`)}</ul>`}
    ${!ready && html`<p class="quiet small">Test the connection to choose from the databases and to see which tables match.</p>`}
    ${schemas && html`<div class="schemas">${schemas.map(({ name, tables }) => html`<${CheckField} key=${name} label=${`all of ${name} (${plural(tables, "table")})`} checked=${patterns.includes(`${name}.*`)} onInput=${(on) => toggle(`${name}.*`, on)} />`)}</div>`}
    ${failure && html`<${Failure} error=${failure} />`}
    ${found && html`
      <div class="found" role="region" aria-label="Tables found" tabindex="0"><p class="small soft found-head" role="status">${plural(found.length, "table")} match</p>
        ${found.slice(0, shown).map((table) => html`
          <div class="found-table" key=${table.table}>
            <button type="button" aria-expanded=${open === table.table ? "true" : "false"} onClick=${() => setOpen(open === table.table ? null : table.table)}>
              <${Icon} name=${open === table.table ? "down" : "arrow"} size=${12} /><b class="cut-off">${table.table}</b><span class="small quiet number nowrap">${table.rows === null ? "" : `about ${short(table.rows)} rows`}${table.bytes ? `, ${bytes(table.bytes)}` : ""}</span></button>
            ${table.faults.map((fault) => html`<p key=${fault.detail} class="small cause">${sentence(fault.detail)} ${sentence(fault.remedy)}</p>`)}
            ${open === table.table && html`<table class="list types"><thead><tr><th>Column</th><th>Source</th><th>Lake</th></tr></thead><tbody>${table.columns.map((column) => html`<tr key=${column.name}><td class="mono">${column.name}${table.key.includes(column.name) ? html` <span class="quiet">key</span>` : null}</td><td class="soft">${column.type}</td><td class="soft">${column.lake_type ?? "none"}</td></tr>`)}</tbody></table>`}
          </div>`)}
        ${found.length > shown && html`<p class="found-head"><${Button} size="small" kind="plain" icon="down" onClick=${() => setShown(shown + MORE)}>Show ${count(Math.min(MORE, found.length - shown))} more of ${count(found.length - shown)}<//></p>`}
      </div>`}`;
}
