// All pipelines at a glance: what a person must act on, then a card each; searched, sorted and filtered by the address.
import { get, getAll } from "../api.js";
import { ago, count, label, moment, now, plural, span } from "../format.js";
import { go, link, useClock, usePoll, useQuery } from "../hooks.js";
import { html, useMemo, useState } from "../html.js";
import { may } from "../operations.js";
import { Button, Empty, isStale, Mode, Phases, Polled, Search, Segments } from "../parts/basics.js";
import { Conditions } from "../parts/conditions.js";
import { useOperations } from "../parts/operate.js";
import { asOf, foremost, SEVERITY_TONES, sinceOf, state } from "../shapes.js";

const PAGE = 60;
const FEW = 3;
const START = { q: "", sort: "severity", show: "all", tag: "" };
const SHOWN = {
  all: () => true,
  troubled: ({ about }) => Boolean(about.troubled),
  paused: ({ pipeline }) => ["paused", "stopped"].includes(pipeline.mode),
  live: ({ about }) => about.mode === "running",
};
const SEVERITIES = Object.keys(SEVERITY_TONES);
const severityOf = ({ about, pipeline }) => {
  const at = SEVERITIES.indexOf(foremost(pipeline.conditions)?.severity);
  return at >= 0 ? at : about.mode === "running" ? SEVERITIES.length + 1 : SEVERITIES.length;
};
const SORTS = {
  severity: [severityOf, "most severe first"],
  name: [() => 0, "by name"],
  lag: [({ pipeline }) => pipeline.source_time ?? Infinity, "longest behind first"],
};

/** Pipelines and conditions in one look. */
async function look(signal) {
  const [pipelines, conditions] = await Promise.all([
    getAll("/v1/pipelines", { signal }),
    get("/v1/conditions", { signal }).catch((error) => {
      if (error.status === 404) return []; // a control service of before conditions, while services are replaced
      throw error;
    }),
  ]);
  return { pipelines, conditions: [...conditions.filter(shared), ...conditions.filter((each) => !shared(each))] };
}

const shared = (condition) => !condition.pipeline;

export function Overview({ me }) {
  const found = usePoll(look, 3, "pipelines");
  const [ask, dialog] = useOperations(me, found.refresh);
  useClock();
  const admin = may(me, "admin");
  const create = html`<${Button} kind="primary" icon="plus" reason=${admin ? null : "needs the role admin"}
    onClick=${() => go("#/new")}>New pipeline<//>`;
  return html`
    ${dialog}
    <div class="page-head"><div><h1 tabindex="-1">Pipelines</h1></div><div class="actions">${create}</div></div>
    <${Polled} of=${found} what="pipelines">${({ pipelines, conditions }) => html`
      <${Conditions} conditions=${conditions} pipelines=${pipelines} me=${me} ask=${ask} changed=${found.refresh} named few=${5} />
      ${
        pipelines.length === 0
          ? html`<section class="card"><${Empty} title="No pipelines yet" actions=${create}>
              A pipeline copies tables of one MySQL or MariaDB into Iceberg and keeps them current.<//></section>`
          : html`<${Listed} pipelines=${pipelines} seen=${isStale(found) ? moment(found.at) : null} />`
      }`}<//>`;
}

/** The cards, by what the address asks for. `seen`: when they were so, if that is old by now. */
function Listed({ pipelines, seen }) {
  const [wanted, want] = useQuery(START);
  const [pages, setPages] = useState(1);
  const all = useMemo(
    () => pipelines.map((pipeline) => ({ pipeline, about: state(pipeline) })),
    [pipelines, wanted, seen],
  );
  const tags = [...new Set(pipelines.flatMap((each) => tagsOf(each)))].sort();
  const text = wanted.q.trim().toLowerCase();
  const [value] = SORTS[wanted.sort] ?? SORTS.severity;
  const chosen = all.filter(
    ({ pipeline }) =>
      (!text || searched(pipeline).includes(text)) && (!wanted.tag || tagsOf(pipeline).includes(wanted.tag)),
  );
  const shown = chosen
    .filter(SHOWN[wanted.show] ?? SHOWN.all)
    .sort((a, b) => value(a) - value(b) || (a.pipeline.name < b.pipeline.name ? -1 : 1));
  const change = (some) => {
    setPages(1);
    want(some);
  };
  const options = Object.entries(SHOWN).map(([id, test]) => [id, `${id} ${count(chosen.filter(test).length)}`]);
  return html`
    ${
      pipelines.length > FEW &&
      html`<div class="row pipelines-find">
        <${Search} label="Find a pipeline, tag or source" value=${wanted.q} onInput=${(q) => change({ q })} />
        <${Segments} label="Show" value=${wanted.show} options=${options} onChange=${(show) => change({ show })} />
        <${Choice} label="Tag" value=${wanted.tag} options=${[["", "any tag"], ...tags.map((tag) => [tag, tag])]}
          onChange=${(tag) => change({ tag })} />
        <${Choice} label="Sort" value=${wanted.sort} options=${Object.entries(SORTS).map(([id, [, words]]) => [id, words])}
          onChange=${(sort) => change({ sort })} />
      </div>`
    }
    <ul class="pipelines ${seen ? "old" : ""}">${shown
      .slice(0, pages * PAGE)
      .map(
        (each) =>
          html`<${PipelineCard} key=${each.pipeline.name} ...${each} seen=${seen} onTag=${(tag) => change({ tag })} />`,
      )}</ul>
    ${shown.length === 0 && html`<section class="card"><${Empty} title="No such pipeline">Change the filter above.<//></section>`}
    ${
      pipelines.length > FEW &&
      html`<p class="small quiet pipelines-foot" role="status">${plural(shown.length, "pipeline")}${shown.length < pipelines.length ? ` of ${count(pipelines.length)}` : ""}
        ${
          shown.length > pages * PAGE &&
          html`<${Button} size="small" icon="down" onClick=${() => setPages(pages + 1)}>
          Show ${count(Math.min(PAGE, shown.length - pages * PAGE))} more of ${count(shown.length - pages * PAGE)}<//>`
        }</p>`
    }`;
}

const tagsOf = (pipeline) => Object.entries(pipeline.tags ?? {}).map(([key, value]) => `${key}: ${value}`);
const searched = (pipeline) =>
  [pipeline.name, pipeline.definition?.source?.host, ...tagsOf(pipeline)].filter(Boolean).join("\n").toLowerCase();

const Choice = ({ label: name, value, options, onChange }) => html`
  <select class="input choice" aria-label=${name} value=${value} onChange=${(event) => onChange(event.target.value)}>
    ${options.map(([id, text]) => html`<option key=${id} value=${id} selected=${id === value}>${text}</option>`)}
  </select>`;

function PipelineCard({ pipeline, about, seen, onTag }) {
  const total = Object.values(pipeline.tables).reduce((a, b) => a + b, 0);
  const source = pipeline.definition?.source ?? {};
  return html`
    <li class="card pipeline-card tone-${about.tone ?? "plain"} ${about.troubled ? "troubled" : ""}">
      <div class="row spread"><h2><a class="card-link" href=${link("pipelines", pipeline.name)}>${pipeline.name}</a></h2><${Mode} about=${about} seen=${seen} /></div>
      <p class="soft pipeline-sentence">${about.sentence} <span class="small quiet">${sinceOf(pipeline, about)} ${asOf(pipeline)}</span></p>
      <${Phases} tables=${pipeline.tables} />
      <dl class="pipeline-facts">
        <div><dt>Tables</dt><dd class="number">${count(total)}</dd></div>
        <div><dt>Lake behind</dt><dd class="number">${pipeline.source_time ? span(now() - pipeline.source_time) : "–"}</dd></div>
        <div><dt>Checkpoint</dt><dd class="number">${label(pipeline.checkpoint)}</dd></div>
        <div><dt>Published</dt><dd class="number">${ago(pipeline.published_at)}</dd></div>
      </dl>
      <p class="small quiet cut-off mono">${source.host ? `${source.host}:${source.port ?? 3306}` : ""}${pipeline.definition?.sink?.warehouse ? ` → ${pipeline.definition.sink.warehouse}` : ""}</p>
      ${
        tagsOf(pipeline).length > 0 &&
        html`<ul class="tags">${tagsOf(pipeline).map((tag) => html`<li key=${tag}><button type="button" title="Show those with this tag" onClick=${() => onTag(tag)}>${tag}</button></li>`)}</ul>`
      }
    </li>`;
}
