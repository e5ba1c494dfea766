// All pipelines at a glance.
import { getAll } from "../api.js";
import { ago, count, label, now, span } from "../format.js";
import { link, useClock, usePoll } from "../hooks.js";
import { html, useState } from "../html.js";
import { may } from "../operations.js";
import { Button, Empty, Mode, Phases, Polled, Search, sentence } from "../parts/basics.js";
import { state } from "../shapes.js";

export function Overview({ me }) {
  const [text, setText] = useState("");
  const found = usePoll((signal) => getAll("/v1/pipelines", { signal }), 3, "pipelines");
  useClock();
  const admin = may(me, "admin");
  const create = html`<${Button} kind="primary" icon="plus" reason=${admin ? null : "needs the role admin"} onClick=${() => {
    location.hash = "#/new";
  }}>New pipeline<//>`;
  return html`
    <div class="page-head"><div><h1 tabindex="-1">Pipelines</h1></div><div class="actions">${found.data?.length > 6 && html`<${Search} label="Find a pipeline" value=${text} onInput=${setText} />`}${create}</div></div>
    <${Polled} of=${found} what="pipelines">${(pipelines) =>
      pipelines.length === 0
        ? html`<section class="card"><${Empty} title="No pipelines yet" actions=${create}>A pipeline copies tables of one MySQL or MariaDB into Iceberg and keeps them current.<//></section>`
        : html`<ul class="pipelines">${pipelines.filter((item) => item.name.includes(text.trim().toLowerCase())).map((item) => html`<${PipelineCard} key=${item.name} pipeline=${item} />`)}</ul>`}<//>`;
}

function PipelineCard({ pipeline }) {
  const about = state(pipeline);
  const total = Object.values(pipeline.tables).reduce((a, b) => a + b, 0);
  const broken = pipeline.tables.quarantined ?? 0;
  const source = pipeline.definition?.source ?? {};
  return html`
    <li class="card pipeline-card ${broken || ["halted", "unknown"].includes(about.mode) ? "troubled" : ""}">
      <div class="row spread"><h2><a class="card-link" href=${link("pipelines", pipeline.name)}>${pipeline.name}</a></h2><${Mode} name=${about.mode} text=${about.word} /></div>
      <p class="soft pipeline-sentence">${about.sentence} ${about.mode === "halted" && sentence(pipeline.halted.sentence)}</p>
      <${Phases} tables=${pipeline.tables} />
      <dl class="pipeline-facts">
        <div><dt>Tables</dt><dd class="number">${count(total)}</dd></div>
        <div><dt>Lake behind</dt><dd class="number">${pipeline.source_time ? span(now() - pipeline.source_time) : "–"}</dd></div>
        <div><dt>Checkpoint</dt><dd class="number">${label(pipeline.checkpoint)}</dd></div>
        <div><dt>Published</dt><dd class="number">${ago(pipeline.published_at)}</dd></div>
      </dl>
      <p class="small quiet cut-off mono">${source.host ? `${source.host}:${source.port ?? 3306}` : ""}${pipeline.definition?.sink?.warehouse ? ` → ${pipeline.definition.sink.warehouse}` : ""}</p>
      ${Object.keys(pipeline.tags ?? {}).length > 0 && html`<ul class="tags">${Object.entries(pipeline.tags).map(([key, value]) => html`<li key=${key}>${key}: ${value}</li>`)}</ul>`}
    </li>`;
}
