// One pipeline: its head with the operations, its tabs, and what all tabs share.
import { get, getAll, pipelinePath } from "../api.js";
import { lasting, moment } from "../format.js";
import { link, useClock, usePoll } from "../hooks.js";
import { html, useCallback, useEffect } from "../html.js";
import { OPERATIONS, reasonAgainst } from "../operations.js";
import { Button, Empty, Failure, isStale, Loading, Menu, Mode, Stale, sentence, Tabs } from "../parts/basics.js";
import { Conditions } from "../parts/conditions.js";
import { useOperations } from "../parts/operate.js";
import { history, observe, recall } from "../samples.js";
import { asOf, conditionsOf, modeText, starts, state } from "../shapes.js";
import { Activity } from "./activity.js";
import { Checkpoints } from "./checkpoints.js";
import { Cuts } from "./cuts.js";
import { Definition } from "./definition.js";
import { Picture } from "./picture.js";
import { TableDetail } from "./table.js";
import { Tables } from "./tables.js";

const VIEWS = {
  "": Picture,
  tables: Tables,
  checkpoints: Checkpoints,
  cuts: Cuts,
  activity: Activity,
  definition: Definition,
};
const MANY = 300;
let manyTables = false;

/** The pipeline, its tables and channels in one look, noted in the history. */
async function look(name, signal) {
  const pipeline = await get(pipelinePath(name), { signal });
  const total = Object.values(pipeline.tables).reduce((a, b) => a + b, 0);
  manyTables = total > MANY;
  const [tables, channels] = await Promise.all([
    getAll(pipelinePath(name, "/tables?limit=1000"), { signal }),
    getAll(pipelinePath(name, "/channels"), { signal }).catch((error) => {
      if (error.name === "AbortError") throw error;
      return [];
    }),
  ]);
  if (!history(name).at.length) {
    const checkpoints = await get(pipelinePath(name, "/checkpoints?limit=200"), { signal }).catch(() => []);
    recall(name, checkpoints);
  }
  return { pipeline, tables, channels, history: observe(name, pipeline, channels) };
}

export function Pipeline({ me, path }) {
  const [, name, tab = "", ...rest] = path;
  const found = usePoll((signal) => look(name, signal), history(name).looks < 2 ? 1 : manyTables ? 4 : 2, name);
  const refresh = found.refresh;
  const [ask, dialog] = useOperations(me, refresh);
  useClock();
  const current = VIEWS[tab] ? tab : "";
  const title = current ? `${name}: ${rest[0] && current === "tables" ? rest[0] : current}` : name;
  useEffect(() => {
    document.title = `${title} · Cutline`;
  }, [title]);
  const asking = useCallback(
    (id, more = {}) => ask(id, { pipeline: found.data?.pipeline, tables: found.data?.tables, ...more }),
    [found.data],
  );
  if (found.error?.status === 404)
    return html`<${Crumbs} /><h1 tabindex="-1">${name}</h1><br /><section class="card"><${Empty} title=${`No pipeline ${name}`} actions=${html`<a class="button" href="#/">All pipelines</a>`}>It was deleted, or the address has another name.<//></section>`;
  if (!found.data)
    return found.error
      ? html`<${Crumbs} name=${name} /><h1 tabindex="-1">${name}</h1><br /><${Failure} error=${found.error} retry=${refresh} />`
      : html`<${Loading} what=${name} />`;
  const { pipeline, tables } = found.data;
  const View = VIEWS[current];
  const stale = isStale(found);
  const shared = { me, ...found.data, ask: asking, refresh, rest, stale };
  const aboutTables = pipeline.conditions?.some((each) => each.tables_total && !each.acknowledged);
  const broken = tables.filter((table) => table.phase === "quarantined").length;
  const table = current === "tables" ? rest[0] : null;
  const conditions = table ? conditionsOf(pipeline, table) : pipeline.conditions;
  const tabs = [
    { id: "", text: "Overview" },
    { id: "tables", text: "Tables", count: broken || tables.length, warn: aboutTables },
    { id: "checkpoints", text: "Checkpoints" },
    { id: "cuts", text: "Cuts" },
    { id: "activity", text: "Activity" },
    { id: "definition", text: "Definition" },
  ].map((item) => ({ ...item, href: item.id ? link("pipelines", name, item.id) : link("pipelines", name) }));
  return html`
    ${dialog}
    <${Head} pipeline=${pipeline} me=${me} ask=${asking} seen=${stale ? moment(found.at) : null} />
    ${stale && html`<${Stale} of=${found} /><br />`}
    <${Conditions} conditions=${conditions} pipelines=${[pipeline]} tables=${tables} me=${me} ask=${asking} changed=${refresh} />
    <${Tabs} label="Views of the pipeline" tabs=${tabs} current=${current} />
    <div class=${stale || (pipeline.current === false && !starts(pipeline)) ? "old" : ""}>${table ? html`<${TableDetail} ...${shared} name=${table} />` : html`<${View} ...${shared} />`}</div>`;
}

const Crumbs = () => html`<nav class="crumbs" aria-label="Breadcrumb"><a href="#/">Pipelines</a></nav>`;

/** `seen`: the time of a look that is old by now. */
function Head({ pipeline, me, ask, seen }) {
  const about = state(pipeline);
  const context = { pipeline };
  const main = pipeline.halted ? "start" : ({ paused: "resume", stopped: "start" }[pipeline.mode] ?? "pause");
  const button = (id, kind) =>
    html`<${Button} key=${id} kind=${kind} icon=${OPERATIONS[id].icon} onClick=${() => ask(id)}>${OPERATIONS[id].short}<//>`;
  const item = (id) => ({
    ...OPERATIONS[id],
    id,
    label: OPERATIONS[id].title,
    reason: reasonAgainst(OPERATIONS[id], context, me),
    run: () => ask(id),
  });
  return html`
    <header class="page-head">
      <div>
        <${Crumbs} />
        <div class="page-title"><h1 tabindex="-1">${pipeline.name}</h1><${Mode} about=${about} seen=${seen} /><span class="small quiet number">${modeText(pipeline, about.word ?? about.mode)}</span></div>
        <p>${about.sentence}${!about.troubled && about.since && about.mode !== pipeline.mode ? html` <span class="small quiet number">${sentence(lasting(about.since))}</span>` : null}</p>
        ${asOf(pipeline) && html`<p class="as-of small quiet">${asOf(pipeline)}</p>`}
      </div>
      <div class="actions">
        ${pipeline.mode !== "deleting" && [button(main, main === "pause" ? "" : "primary"), button("savepoint", "")]}
        <${Menu} label="More operations" items=${[item("checkpoint"), item("limits"), item("add_table"), item("read_again"), null, item("stop"), item("delete"), ...(pipeline.mode === "deleting" ? [item("leave_lake")] : [])]} />
      </div>
    </header>`;
}
