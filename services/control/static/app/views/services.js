// The service processes: role, lease, memory, CPU, and the last lines of each one's log.
import { get, getAll } from "../api.js";
import { bytes, count, label, now, plural, span } from "../format.js";
import { link, useClock, usePoll } from "../hooks.js";
import { html, useLayoutEffect, useRef, useState } from "../html.js";
import { Icon } from "../icons.js";
import { Badge, Button, causeText, Empty, Failure, Loading, Polled } from "../parts/basics.js";
import { Conditions, MissingRole } from "../parts/conditions.js";
import { Dialog } from "../parts/dialog.js";
import { roleName } from "../shapes.js";

const ROLE_ICONS = {
  enumerator: "leader",
  reader: "reader",
  writer: "writer",
  spark_writer: "spark",
  control: "person",
};
const MOST_WORK = 4;

export function Services({ me }) {
  const found = usePoll((signal) => getAll("/v1/services", { signal }), 2, "services");
  const conditions = usePoll((signal) => get("/v1/conditions", { signal }), 3, "conditions");
  const failed = found.data?.some((service) => Object.keys(service.failed ?? {}).length);
  // Which pipelines there are, so that notes about a deleted one vanish; asked for only where there are notes.
  const pipelines = usePoll(
    async (signal) => failed && (await getAll("/v1/pipelines", { signal })).map((each) => each.name),
    20,
    `names ${Boolean(failed)}`,
  );
  const [logs, setLogs] = useState(null);
  useClock();
  const all = conditions.data ?? [];
  const missing = Map.groupBy(
    all.filter((each) => each.name === "CutlineNoLeader"),
    (each) => each.labels.role,
  );
  return html`
    ${logs && html`<${Logs} service=${logs} onClose=${() => setLogs(null)} />`}
    <div class="page-head"><div><h1 tabindex="-1">Services</h1><p>Every process that was alive within the last five seconds.</p></div></div>
    <${Conditions} conditions=${all.filter((each) => !each.pipeline)} me=${me} changed=${conditions.refresh} />
    <${Polled} of=${found} what="services">${(services) =>
      services.length === 0
        ? html`<section class="card"><${Empty} title="No service runs">Start them with <code>cutline run</code>, Docker Compose or the Helm chart.<//></section>`
        : html`<ul class="services">
            ${[...missing].map(([role, of]) => html`<${MissingRole} key=${role} role=${role} conditions=${of} runs=${services.some((service) => service.role === role)} />`)}
            ${services.map((service) => html`<${ServiceCard} key=${service.incarnation} service=${service} pipelines=${pipelines.data || null} onLogs=${() => setLogs(service)} />`)}</ul>`}<//>`;
}

/** What it does for which pipeline: leads it, or is a member of its epoch. */
const workOf = ({ leads, members, epochs }) => [
  ...leads.map((name) => [name, "leads"]),
  ...Object.entries(members).map(([name, member]) => [name, `${member}, epoch ${label(epochs[name])}`]),
];

function ServiceCard({ service, pipelines, onLogs }) {
  const failures = Object.entries(service.failed ?? {}).filter(([name]) => !pipelines || pipelines.includes(name));
  const lag = service.loop_lag_seconds;
  const work = workOf(service);
  const idle =
    service.role === "control"
      ? "the API and this page"
      : ["enumerator", "spark_writer"].includes(service.role)
        ? "stands by"
        : "no member of an epoch";
  return html`
    <li class="card service">
      <div class="row spread"><h2 class="service-name"><${Icon} name=${ROLE_ICONS[service.role] ?? "info"} />${roleName(service.role)}</h2>
        ${service.leaving ? html`<${Badge} tone="paused" icon="out">leaving<//>` : service.starting ? html`<${Badge} tone="waiting" icon="clock">starting<//>` : html`<${Badge} tone="live" icon="check">up<//>`}</div>
      <p class="mono small quiet cut-off" title=${service.incarnation}>${service.incarnation}</p>
      <dl class="service-facts">
        <div><dt>Host</dt><dd class="cut-off">${service.host} <span class="quiet number">pid ${service.pid}</span></dd></div>
        <div><dt>Up for</dt><dd class="number">${span(now() - service.started_at)}</dd></div>
        <div><dt>Memory</dt><dd class="number">${bytes(service.rss_bytes)}</dd></div>
        <div><dt>CPU</dt><dd class="number">${service.cpu_seconds === null || service.cpu_seconds === undefined ? "–" : `${span(service.cpu_seconds)}`}</dd></div>
        <div><dt>Loop delay</dt><dd class="number">${lag === null || lag === undefined ? "–" : `${Math.round(lag * 1000)} ms`}</dd></div>
        <div class="whole"><dt>Work</dt>${work.length ? work.slice(0, MOST_WORK).map(([name, what]) => html`<dd key=${name} class="cut-off"><a href=${link("pipelines", name)}>${name}</a> <span class="quiet">${what}</span></dd>`) : html`<dd class="quiet">${idle}</dd>`}
          ${work.length > MOST_WORK && html`<dd class="quiet">and ${count(work.length - MOST_WORK)} more pipelines</dd>`}</div>
      </dl>
      ${failures.map(([pipeline, failure]) => html`<p key=${pipeline} class="small service-note ${service.epochs[pipeline] > failure.epoch ? "quiet" : "cause"}">Gave up epoch ${label(failure.epoch)} of ${pipeline}: ${causeText(failure.cause)}</p>`)}
      <div class="actions"><${Button} size="small" icon="search" onClick=${onLogs}>Log<//></div>
    </li>`;
}

function Logs({ service, onClose }) {
  const found = usePoll(
    (signal) => get(`/v1/services/${encodeURIComponent(service.incarnation)}/logs?lines=200`, { signal }),
    3,
    `log ${service.incarnation}`,
  );
  const lines = found.data;
  const end = useRef(null);
  const follows = useRef(true); // until a person scrolls up
  useLayoutEffect(() => {
    if (end.current && follows.current) end.current.scrollTop = end.current.scrollHeight;
  }, [lines]);
  const text = (line) => `${new Date(line.at * 1000).toISOString().slice(11, 23)}  ${line.level}  ${line.text}`;
  return html`<${Dialog} title=${`Log of the ${service.role === "control" ? "control service" : roleName(service.role)}`} subject=${service.incarnation} wide icon="search" onClose=${onClose}>
    ${
      found.error && !lines
        ? html`<${Failure} error=${found.error} />`
        : lines
          ? (
              lines.length
                ? html`<pre class="code log" ref=${end} onScroll=${({ target }) => {
                    follows.current = target.scrollTop + target.clientHeight > target.scrollHeight - 24;
                  }} tabindex="0" aria-label="Last lines">${lines.map(text).join("\n")}</pre>`
                : html`<p class="quiet">It has logged nothing yet.</p>`
            )
          : html`<${Loading} what="the log" />`
    }
    ${lines?.length > 0 && html`<p class="small quiet">The last ${plural(lines.length, "line")}, newest last, in UTC; asked for again every three seconds.</p>`}
  <//>`;
}
