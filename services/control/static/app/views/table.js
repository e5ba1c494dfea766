// One table: its facts, the grid of its chunks, its schemas, its operations.
import { get, getAll, pipelinePath } from "../api.js";
import { ago, bytes, count, label, lasting, moment, short, span } from "../format.js";
import { link, usePoll } from "../hooks.js";
import { html, useMemo } from "../html.js";
import {
  Bar,
  Button,
  Card,
  Empty,
  Failure,
  Loading,
  Notice,
  PHASE_MEANINGS,
  Phase,
  sentence,
} from "../parts/basics.js";
import { SplitGrid } from "../parts/grid.js";
import { cellsOf, chunkText, conditionsOf, progress, state } from "../shapes.js";
import { tableOperations } from "./tables.js";

/** What the phase means for a person; not what it promises while a condition holds, or while this is not of now. */
function meaning(listed, pipeline, conditions, stale) {
  if (listed.phase === "quarantined" && !listed.published_checkpoint)
    return "Stopped by a fault; the lake has nothing of it yet.";
  if (listed.phase !== "live") return sentence(PHASE_MEANINGS[listed.phase]);
  if (conditions.length) return sentence(conditions[0].summary);
  if (stale) return "The lake followed the source then.";
  const about = state({ ...pipeline, conditions });
  return about.mode === "running" ? sentence(PHASE_MEANINGS.live) : about.sentence;
}

export function TableDetail({ pipeline, tables, me, ask, name, stale }) {
  const listed = tables.find((table) => table.table === name);
  const path = pipelinePath(pipeline.name, `/tables/${encodeURIComponent(name)}`);
  const reading = listed && ["waiting", "snapshot"].includes(listed.phase);
  const splits = usePoll(
    (signal) => get(`${path}/splits`, { signal }),
    reading ? 2 : 10,
    `splits ${path} ${listed?.phase} ${listed?.generation}`,
  );
  const schemas = usePoll((signal) => getAll(`${path}/schemas`, { signal }), 30, `schemas ${path}`);
  const cells = useMemo(() => (splits.data ? cellsOf(splits.data) : null), [splits.data]);
  if (!listed)
    return html`<section class="card"><${Empty} title=${`No table ${name}`} actions=${html`<a class="button" href=${link("pipelines", pipeline.name, "tables")}>All tables</a>`}>The pipeline captures no table of this name.<//></section>`;
  const fraction = progress(listed);
  const conditions = conditionsOf(pipeline, name);
  const old = stale || pipeline.current === false;
  const own = conditions.find((each) => each.tables.includes(name));
  const tone = listed.phase === "quarantined" && !own?.acknowledged ? "warn" : "plain";
  const operations = tableOperations({ pipeline, table: listed }, me, ask).filter(Boolean);
  return html`
    <div class="stack">
      <div class="row spread">
        <div><nav class="crumbs" aria-label="Tables"><a href=${link("pipelines", pipeline.name, "tables")}>All tables</a></nav>
          <div class="page-title"><h2 class="table-title">${name}</h2><${Phase} name=${listed.phase} since=${listed.since} quiet=${listed.phase === "live" && (conditions.length > 0 || old)} /><span class="small quiet number">${lasting(listed.since)}</span></div>
          <p class="soft">${meaning(listed, pipeline, conditions, old)}</p></div>
        <div class="actions">${operations.map((item) => html`<${Button} key=${item.label} size="small" icon=${item.icon} reason=${item.reason} onClick=${item.run}>${item.short}<//>`)}</div>
      </div>
      ${listed.cause && (!own || own.acknowledged) && html`<${Notice} tone=${tone} icon="warning" title=${sentence(listed.cause)}>${listed.remedy && html`<p>${sentence(listed.remedy)}</p>`}<//>`}
      <${Card} title="Chunks" end=${html`<span class="small quiet number">${listed.splits_total ? `${count(listed.splits_done)} of ${count(listed.splits_total)} read` : ""}</span>`}>
        ${fraction < 1 && html`<div class="chunk-progress"><${Bar} fraction=${fraction} tone=${reading ? listed.phase : "waiting"} label=${`Snapshot of ${name}`} /><p class="small soft number">${short(listed.rows_done)} of about ${short(listed.rows_estimate)} rows${listed.rate_rows_per_second ? `, ${short(listed.rate_rows_per_second)} rows/s` : ""}${listed.eta_seconds ? `, ${span(listed.eta_seconds)} to go` : ""}</p></div>`}
        ${splits.loading && !splits.data && html`<${Loading} what="the chunks" />`}
        ${splits.error && !splits.data ? html`<${Failure} error=${splits.error} retry=${splits.refresh} />` : null}
        ${cells && (cells.length ? html`<${SplitGrid} cells=${cells} label=${`Chunks of ${name}`} about=${(i) => chunkText(splits.data, i)} />` : html`<p class="quiet">${listed.rows_done ? "The chunks of this table are not kept any more: it has been read." : "No chunk of this table has been read."}</p>`)}
      <//>
      <div class="columns">
        <${Card} title="State">
          <dl class="facts">
            <dt>Generation</dt><dd>${label(listed.generation)}</dd>
            <dt>Rows in the lake</dt><dd>${count(listed.rows)}</dd>
            <dt>Changes since the snapshot</dt><dd>${changesOf(listed)}</dd>
            <dt>Rows read</dt><dd>${count(listed.rows_done)}${listed.rows_estimate ? html` <span class="quiet">of about ${count(listed.rows_estimate)}</span>` : null}</dd>
            <dt>Behind the source</dt><dd>${span(listed.lag_seconds)}${listed.lag_bytes ? `, ${bytes(listed.lag_bytes)} of binlog` : ""}</dd>
            <dt>Last change</dt><dd>${listed.last_change_at ? `${moment(listed.last_change_at)} (${ago(listed.last_change_at)})` : "–"}</dd>
            <dt>Published</dt><dd>${listed.published_checkpoint ? `checkpoint ${label(listed.published_checkpoint)}, ${ago(listed.published_at)}` : "–"}</dd>
          </dl>
        <//>
        <${Card} title="Schemas" body=${false}><${Schemas} found=${schemas} /><//>
      </div>
    </div>`;
}

/** The changes of a table that were captured since its snapshot. */
const changesOf = (table) =>
  ["inserts", "updates", "deletes"].map((kind) => `${count(table[kind])} ${kind}`).join(", ");

function Schemas({ found }) {
  if (found.error) return html`<div class="card-body"><p class="quiet">${sentence(found.error.message)}</p></div>`;
  const all = found.data ?? [];
  if (!all.length) return html`<div class="card-body"><p class="quiet">No schema is known yet.</p></div>`;
  const [newest] = [...all].sort((a, b) => b.since - a.since);
  return html`
    <div class="scroll-x schema-list" tabindex="0" role="region" aria-label="Columns">
      <table class="list"><thead><tr><th>Column</th><th>Source</th><th>Lake</th></tr></thead>
        <tbody>${(newest.columns ?? []).map((column) => html`<tr key=${column.name}><td class="mono">${column.name}${newest.key?.includes(column.name) ? html` <span class="quiet">key</span>` : null}</td><td class="soft">${column.type}</td><td class="soft">${newest.mask?.includes(column.name) ? "masked" : (column.lake_type ?? (newest.select ? "by the rule" : "not supported"))}</td></tr>`)}</tbody></table>
    </div>
    ${newest.select && html`<p class="card-foot small">The lake has <code class="mono">${newest.select.join(", ")}</code>${newest.where && html` where <code class="mono">${newest.where}</code>`}${newest.mode && html`, mode <code class="mono">${newest.mode}</code>`}</p>`}
    ${all.length > 1 && html`<p class="card-foot small quiet">${all.length} schemas so far; this one since ${moment(newest.since)}</p>`}`;
}
