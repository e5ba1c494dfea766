// A pipeline's overview: figures, the live mesh, charts, what needs a person, and the newest events.
import { get, getAll, pipelinePath } from "../api.js";
import { ago, bytes, clock, count, label, moment, now, short, span } from "../format.js";
import { link, usePoll } from "../hooks.js";
import { html, useMemo } from "../html.js";
import { Button, because, Card, causeText, Notice, Phases, Stat, waitOf } from "../parts/basics.js";
import { Chart } from "../parts/chart.js";
import { Mesh } from "../parts/mesh.js";
import { WINDOW_SECONDS } from "../samples.js";
import { mesh, starts } from "../shapes.js";
import { EventList, KINDS_TOLD } from "./activity.js";

export function Picture({ pipeline, tables, channels, history, ask, stale }) {
  const services = usePoll((signal) => getAll("/v1/services", { signal }), 5, "services");
  const events = usePoll(
    (signal) => get(pipelinePath(pipeline.name, `/events?kind=${KINDS_TOLD}&limit=8`), { signal }),
    4,
    `events ${pipeline.name}`,
  );
  const drawn = mesh(pipeline, channels, services.data ?? [], history.rates);
  const rows = history.rows.at(-1);
  const behind = pipeline.source_time ? now() - pipeline.source_time : null;
  const through = useMemo(() => [[...history.at], [...history.rows]], [history.at.at(-1)]);
  const volume = useMemo(() => [[...history.at], [...history.bytes]], [history.at.at(-1)]);
  const lag = useMemo(() => [[...history.at], [...history.lake]], [history.at.at(-1)]);
  const limits = pipeline.limits ?? {};
  const limited = [
    limits.rows_per_second && `${short(limits.rows_per_second)} rows/s`,
    limits.bytes_per_second && `${bytes(limits.bytes_per_second)}/s`,
  ]
    .filter(Boolean)
    .join(", ");
  return html`
    <div class="stack">
      <${Attention} pipeline=${pipeline} tables=${tables} ask=${ask} />
      <dl class="stat-row">
        <${Stat} name="Lake behind the source" value=${behind === null ? null : span(behind)} note=${pipeline.source_time ? `shows ${clock(pipeline.source_time)}` : "nothing published yet"} />
        <${Stat} name="Throughput" value=${short(rows)} unit="rows/s" note=${limited ? `limited to ${limited}` : "no limit"} />
        <${Stat} name="Checkpoint" value=${label(pipeline.checkpoint)} note=${pipeline.checkpoint_completed_at ? `complete ${ago(pipeline.checkpoint_completed_at)}` : "none yet"} />
        <${Stat} name="Publication" value=${label(pipeline.publication)} note=${pipeline.published_at ? ago(pipeline.published_at) : "none yet"} />
        <${Stat} name="Epoch" value=${label(pipeline.epoch)} note=${pipeline.failures ? `${pipeline.failures} failed in a row` : "this mesh's number"} />
        ${pipeline.binlog_left_seconds ? html`<${Stat} name="Binlog left" value=${span(pipeline.binlog_left_seconds)} note="before the source purges it" />` : null}
      </dl>
      <${Card} title="Mesh" end=${html`<span class="small quiet">width and speed show bytes a second</span>`}>
        <${Mesh} ...${drawn} still=${stale || pipeline.mode !== "running" || pipeline.current === false} />
      <//>
      <${Card} title="Tables" end=${html`<a href=${link("pipelines", pipeline.name, "tables")}>All tables</a>`}><${Phases} tables=${pipeline.tables} /><//>
      <div class="columns">
        <${Card} title="Throughput"><${Chart} label="Rows a second" windowSeconds=${WINDOW_SECONDS} series=${[{ name: "rows/s", tone: "snapshot-fill" }]} data=${through} least=${10} form=${(value) => short(value)} /><//>
        <${Card} title="Lag"><${Chart} label="Seconds behind the source" windowSeconds=${WINDOW_SECONDS} series=${[{ name: "lake behind the source", tone: "live-fill" }]} data=${lag} least=${4} form=${(value) => span(value)} /><//>
        <${Card} title="Channels"><${Chart} label="Bytes a second from readers to writers" windowSeconds=${WINDOW_SECONDS} series=${[{ name: "readers to writers", tone: "catch-up-fill" }]} data=${volume} binary least=${4096} form=${(value) => (value === null || value === undefined ? "–" : `${bytes(value)}/s`)} /><//>
        <${Card} title="Latest events" body=${false} end=${html`<a href=${link("pipelines", pipeline.name, "activity")}>All events</a>`}><${EventList} events=${events.data} error=${events.error} few /><//>
      </div>
    </div>`;
}

/** What a person should act on. */
function Attention({ pipeline, tables, ask }) {
  if (pipeline.mode === "deleting") return null;
  const broken = tables.filter((table) => table.phase === "quarantined");
  const shown = broken.slice(0, 3);
  return html`
    ${pipeline.spark_writer_error && html`<${Notice} tone="bad" icon="warning" title="The Spark writer can't go on; it tries again"><p>${causeText(pipeline.spark_writer_error)}</p><//>`}
    ${starts(pipeline) && html`<${Notice} icon="clock" title="No enumerator has taken it up yet"><p>That takes a few seconds while one runs: see <a href="#/services">Services</a>.</p><//>`}
    ${pipeline.mode === "running" && pipeline.waiting_for && pipeline.waiting_for.party !== "person" && html`<${Notice} tone="warn" icon="clock" title=${`Waiting for ${waitOf(pipeline.waiting_for)}`}>${pipeline.retry_at ? html`<p>The next try is at ${moment(pipeline.retry_at)}.</p>` : null}<//>`}
    ${pipeline.current === false && pipeline.mode !== "stopped" && !starts(pipeline) && html`<${Notice} tone="bad" icon="warning" title="No enumerator leads this pipeline"><p>What you see is as of ${moment(pipeline.as_of)}. Start an enumerator, or look at its log under Services.</p><//>`}
    ${shown.map(
      (table) => html`
      <${Notice} key=${table.table} tone="bad" icon="warning" title=${`${table.table} is quarantined`}>
        <p>${because(table)}</p>
        <div class="actions"><${Button} size="small" icon="again" onClick=${() => ask("retry_table", { table })}>Retry<//><a class="button small plain" href=${link("pipelines", pipeline.name, "tables", table.table)}>Look at the table</a></div>
      <//>`,
    )}
    ${broken.length > shown.length && html`<p><a href=${`${link("pipelines", pipeline.name, "tables")}?phase=quarantined`}>and ${count(broken.length - shown.length)} more quarantined tables</a></p>`}`;
}
