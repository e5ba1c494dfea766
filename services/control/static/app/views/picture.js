// A pipeline's overview: figures, the live mesh, charts, and the newest events.
import { get, getAll, pipelinePath } from "../api.js";
import { ago, bytes, clock, label, now, short, span } from "../format.js";
import { link, usePoll } from "../hooks.js";
import { html, useMemo } from "../html.js";
import { Card, Notice, Phases, Stat } from "../parts/basics.js";
import { Chart } from "../parts/chart.js";
import { Mesh } from "../parts/mesh.js";
import { WINDOW_SECONDS } from "../samples.js";
import { mesh, starts } from "../shapes.js";
import { EventList, KINDS_TOLD } from "./activity.js";

export function Picture({ pipeline, channels, history, stale }) {
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
      ${starts(pipeline) && html`<${Notice} icon="clock" title="No enumerator has taken it up yet"><p>That takes a few seconds while one runs: see <a href="#/services">Services</a>.</p><//>`}
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
