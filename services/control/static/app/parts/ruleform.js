// The rules of tables in the form of a pipeline, each with what Spark makes of it on real rows before it is confirmed.
import { act } from "../api.js";
import { plural } from "../format.js";
import { html, useState } from "../html.js";
import { Button, Failure, Notice, sentence } from "./basics.js";
import { AreaField, SelectField, TextField } from "./fields.js";

const MODES = [
  ["", "mirror: the rows of the source"],
  ["append", "append: every change"],
  ["soft-delete", "soft-delete: deleted rows with a mark"],
  ["history", "history: every version of each row"],
];
const lines = (text) =>
  text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
const names = (text) => text.split(/[\s,]+/).filter(Boolean);

/** An entry with a key changed; what is empty is left out. */
const edited = (entry, key, value) => {
  const { [key]: _, ...rest } = entry;
  return value === undefined || value === "" || value?.length === 0 ? rest : { ...rest, [key]: value };
};

/** The first fault at a place of the definition, or below it: `table_options[0].select[1]` is one of `select`. */
const faultAt = (faults, place) =>
  faults.find(({ field }) => field === place || field?.startsWith(`${place}[`) || field?.startsWith(`${place}.`));

/** `errors`: the API's, by field. `body`: the definition as it is sent. */
export function RuleForms({ entries, body, errors, onChange }) {
  const put = (at, entry) => onChange(entries.map((each, i) => (i === at ? entry : each)));
  return html`
    <p class="small quiet">Which columns and rows the lake has of a table, in Spark SQL, and what a lake table is.
      ${" "}The first rule that matches a table applies.</p>
    ${entries.map(
      (entry, at) => html`<${RuleForm} key=${at} at=${at} entry=${entry} body=${body} errors=${errors}
        put=${(changed) => put(at, changed)} drop=${() => onChange(entries.filter((_, i) => i !== at))} />`,
    )}
    <div class="actions"><${Button} size="small" icon="plus"
      onClick=${() => onChange([...entries, { tables: "" }])}>Add a rule<//></div>`;
}

function RuleForm({ at, entry, body, errors, put, drop }) {
  const [select, setSelect] = useState((entry.select ?? []).join("\n"));
  const [mask, setMask] = useState((entry.mask ?? []).join(", "));
  const [table, setTable] = useState(/[*?[]/.test(entry.tables) ? "" : entry.tables);
  const [preview, setPreview] = useState({ state: "none" });
  const place = `table_options[${at}]`;
  const set = (key, value) => {
    setPreview({ state: "none" });
    put(edited(entry, key, value));
  };
  const faults = [...Object.values(errors), ...(preview.found?.refusals ?? [])];
  const error = (key) => faultAt(faults, `${place}.${key}`);
  const show = async () => {
    setPreview({ state: "asking" });
    try {
      const found = await act("POST", `/v1/plan/preview?table=${encodeURIComponent(table)}`, body);
      setPreview({ state: "known", found });
    } catch (failed) {
      setPreview({ state: "failed", error: failed });
    }
  };
  return html`
    <fieldset class="settings"><legend>${entry.tables || "New rule"}</legend>
      <div class="fields">
        <${TextField} label="Tables" placeholder="shop.orders" value=${entry.tables} error=${error("tables")}
          onInput=${(value) => set("tables", value)} />
        <${AreaField} label="Select" optional rows="3" hint="One item in each line; without any, all columns."
          value=${select} error=${error("select")}
          onInput=${(text) => {
            setSelect(text);
            set("select", lines(text));
          }} />
        <${AreaField} label="Where" optional rows="3" value=${entry.where} error=${error("where")}
          onInput=${(value) => set("where", value)} />
        <${TextField} label="Mask" optional hint="Columns of which the lake has keyed hashes." value=${mask}
          error=${error("mask")}
          onInput=${(text) => {
            setMask(text);
            set("mask", names(text));
          }} />
        <${SelectField} label="Mode" options=${MODES} value=${entry.mode} error=${error("mode")}
          onInput=${(value) => set("mode", value)} />
        <${TextField} label="Table of the preview" placeholder="shop.orders" value=${table} onInput=${setTable} />
      </div>
      <div class="actions">
        <${Button} size="small" icon="search" busy=${preview.state === "asking"}
          reason=${table ? null : "name a table of the preview"} onClick=${show}>Preview<//>
        <${Button} size="small" kind="plain" icon="cross" onClick=${drop}>Remove the rule<//>
      </div>
      ${preview.state === "failed" && html`<${Failure} error=${preview.error} />`}
      ${preview.found && html`<${Preview} found=${preview.found} table=${table} place=${place} />`}
    </fieldset>`;
}

function Preview({ found, table, place }) {
  const others = found.refusals.filter(({ field }) => !field.startsWith(place));
  const columns = found.tables.find((each) => each.table === table)?.columns;
  const { rows } = found;
  return html`
    <section class="stack" aria-label="Preview of ${table}">
      ${found.note && html`<${Notice} tone="warn" title=${sentence(found.note)} />`}
      ${
        others.length > 0 &&
        html`<${Notice} tone="bad" icon="warning" title=${`${plural(others.length, "other fault")}`}>
          <ul class="plan-list">${others.map(
            ({ field, detail, remedy }) => html`<li key=${field}><b class="mono">${field}</b> ${sentence(detail)}
              ${" "}${sentence(remedy)}</li>`,
          )}</ul><//>`
      }
      ${
        rows &&
        html`<${Rows} title="At the source" heads=${rows.columns}
          rows=${rows.rows.map((row) => row.before)} />`
      }
      ${rows?.own_key && html`<p class="small quiet">These hashes are not the lake's: this service has no key.</p>`}
      ${
        columns &&
        html`<${Rows} title="In the lake" heads=${columns.map(({ name, type }) => `${name} ${type}`)}
          rows=${(rows?.rows ?? []).map((row) => row.after ?? row.failure ?? "left out")} />`
      }
    </section>`;
}

/** `rows`: lists of values, or a text in the place of a row. */
const Rows = ({ title, heads, rows }) => html`
  <div class="scroll-x" tabindex="0" role="region" aria-label=${title}>
    <table class="list"><caption>${title}</caption>
      <thead><tr>${heads.map((head, i) => html`<th key=${i}>${head}</th>`)}</tr></thead>
      <tbody>${rows.map(
        (row, i) =>
          html`<tr key=${i}>${
            Array.isArray(row)
              ? row.map((value, j) => html`<td key=${j} class="mono">${value ?? html`<i class="quiet">null</i>`}</td>`)
              : html`<td class="quiet" colspan=${heads.length}>${sentence(row)}</td>`
          }</tr>`,
      )}</tbody></table></div>`;
