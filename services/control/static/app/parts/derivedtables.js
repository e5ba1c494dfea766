// The derived tables of a pipeline: their queries, and what became of them with the last publication.
import { ago, count, span } from "../format.js";
import { html } from "../html.js";
import { because, Card, Phase } from "./basics.js";

export function DerivedTables({ pipeline }) {
  const listed = pipeline.definition?.derived ?? [];
  if (!listed.length) return null;
  return html`
    <${Card} title="Derived tables" body=${false}>
      <div class="scroll-x" tabindex="0" role="region" aria-label="Queries and states">
        <table class="list"><thead><tr><th>Table</th><th>State</th><th>Rows</th><th>Computed</th></tr></thead>
          <tbody>${listed.map(
            (each) => html`<${Derived} key=${each.name} table=${each} state=${pipeline.derived?.[each.name]} />`,
          )}</tbody></table></div><//>`;
}

function Derived({ table, state }) {
  const cause = state?.cause;
  const known = state?.at ? `${ago(state.at)}${state.seconds === null ? "" : `, in ${span(state.seconds)}`}` : "–";
  const phase = cause ? "quarantined" : state?.at ? "live" : "waiting";
  return html`
    <tr><td><b>${table.name}</b><div class="mono small soft">${table.sql}</div>
        ${cause && html`<p class="small cause">${because({ cause: cause.sentence, remedy: cause.remedy })}</p>`}</td>
      <td><${Phase} name=${phase} /></td>
      <td class="number">${count(state?.rows)}</td><td>${known}</td></tr>`;
}
