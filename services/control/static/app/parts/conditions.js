// What a person must act on, as the API lists it: a banner each, with since, cause, remedy and the buttons that help.
import { act } from "../api.js";
import { count, lasting, moment, plural } from "../format.js";
import { link } from "../hooks.js";
import { html, useState } from "../html.js";
import { Icon } from "../icons.js";
import { OPERATIONS, reasonAgainst } from "../operations.js";
import { roleName, SEVERITY_TONES } from "../shapes.js";
import { Acknowledge, mayAcknowledge } from "./acknowledge.js";
import { Button, prose, sentence } from "./basics.js";
import { toast } from "./dialog.js";

/** Operations that a condition's remedy may be; shown where they are possible now. */
const REMEDIES = {
  CutlineHalted: ["start", "read_again"],
  CutlineBinlogPurgeNear: ["start", "resume"],
  CutlineTableQuarantined: ["retry_table"],
};
const NARROW_PX = 720;
const ICONS = { critical: "warning", warning: "warning", info: "info" };

/**
 * `conditions`: as the API sorts them. `pipelines`: those that are known here; `tables`: of the only one, if the view
 * has them. `named`: say of which pipeline each is. `ask`: for an operation. `changed`: after an acknowledgement.
 */
export function Conditions({ conditions, pipelines = [], tables, me, ask, changed, named, few = 3 }) {
  const [asked, setAsked] = useState(null);
  const [all, setAll] = useState(false);
  const open = (conditions ?? []).filter((each) => !each.acknowledged);
  const known = (conditions ?? []).filter((each) => each.acknowledged);
  if (!open.length && !known.length) return null;
  const most = innerWidth < NARROW_PX ? 1 : few;
  const shown = all ? open : open.slice(0, most);
  const common = { pipelines, tables, me, ask, named, onAcknowledge: setAsked };
  const back = async (condition) => {
    try {
      await act("DELETE", `/v1/conditions/${encodeURIComponent(condition.id)}/acknowledgement`);
    } catch (error) {
      toast({ tone: "bad", icon: "warning", title: "Not taken back", text: error.message });
    }
    changed?.();
  };
  return html`
    ${
      asked &&
      html`<${Acknowledge} condition=${asked} me=${me} onClose=${() => setAsked(null)} onDone=${() => {
        setAsked(null);
        changed?.();
      }} />`
    }
    <section class="conditions" aria-label="Conditions">
      ${
        open.length > 0 &&
        html`<ul class="stack tight">
          ${shown.map((each) => html`<li key=${each.id}><${Banner} condition=${each} ...${common} /></li>`)}</ul>`
      }
      ${
        open.length > most &&
        html`<${Button} size="small" kind="plain" icon=${all ? "up" : "down"} onClick=${() => setAll(!all)}>
          ${all ? "Show fewer" : `Show ${count(open.length - most)} more`}<//>`
      }
      ${known.length > 0 && html`<${Acknowledged} conditions=${known} me=${me} named=${named} back=${back} />`}
    </section>`;
}

/** Where a condition is looked at: its pipeline, or nowhere if it is about all of them. */
const Of = ({ condition, named }) =>
  named && condition.pipeline
    ? html`<a href=${link("pipelines", condition.pipeline)}>${condition.pipeline}</a>: `
    : null;

function Banner({ condition, pipelines, tables, me, ask, named, onAcknowledge }) {
  const pipeline = pipelines.find((each) => each.name === condition.pipeline);
  const tone = SEVERITY_TONES[condition.severity];
  const possible = pipeline && ask ? remediesNow(condition, pipeline, me) : [];
  return html`
    <div class="notice condition tone-${tone}">
      <${Icon} name=${ICONS[condition.severity] ?? "info"} label=${condition.severity} />
      <div>
        <div class="condition-head">
          <div role=${condition.severity === "critical" ? "alert" : undefined}>
            <h3><${Of} condition=${condition} named=${named} />${sentence(condition.summary)}</h3></div>
          <span class="small quiet number">${lasting(condition.since)}</span>
        </div>
        ${condition.cause && html`<p>${prose(sentence(condition.cause))}</p>`}
        ${condition.remedy && html`<p>${prose(sentence(condition.remedy))}</p>`}
        ${condition.tables.length > 0 && html`<${Affected} ...${{ condition, pipeline, tables, me, ask }} />`}
        <div class="actions">
          ${possible.map(
            ([id, reason]) =>
              html`<${Button} key=${id} size="small" icon=${OPERATIONS[id].icon} reason=${reason}
                onClick=${() => ask(id, { pipeline })}>${OPERATIONS[id].title}<//>`,
          )}
          <${Button} size="small" icon="check" reason=${mayAcknowledge(me)}
            onClick=${() => onAcknowledge(condition)}>Acknowledge<//>
          <span class="small quiet">More: <code>docs/${condition.runbook}</code></span>
        </div>
      </div>
    </div>`;
}

/** Whether a condition's remedy is this operation's command. */
const isNamed = (condition, id) => (condition.remedy ?? "").includes(`cutline pipeline ${id.replace("_", "-")} `);

/** The operations on the whole pipeline that would help, the one that the remedy names first, each with the reason
 * against it that is the person's role. */
const remediesNow = (condition, pipeline, me) =>
  (REMEDIES[condition.name] ?? [])
    .filter((id) => !id.endsWith("_table") && OPERATIONS[id].when({ pipeline }) === null)
    .sort((one, other) => isNamed(condition, other) - isNamed(condition, one))
    .map((id) => [id, reasonAgainst(OPERATIONS[id], { pipeline }, me)]);

/** The first tables that a condition is about, with what can be done for each now. */
function Affected({ condition, pipeline, tables, me, ask }) {
  const retry = OPERATIONS.retry_table;
  const offered = (name) => {
    const table = tables?.find((each) => each.table === name);
    const helps = (REMEDIES[condition.name] ?? []).includes("retry_table");
    if (!helps || !table || !ask || retry.when({ pipeline, table }) !== null) return null;
    return html`<${Button} size="small" icon=${retry.icon} reason=${reasonAgainst(retry, { pipeline, table }, me)}
      aria-label=${`Retry ${name}`} onClick=${() => ask("retry_table", { pipeline, table })}>${retry.short}<//>`;
  };
  const rest = condition.tables_total - condition.tables.length;
  const list = link("pipelines", condition.pipeline, "tables");
  return html`
    <ul class="condition-tables">
      ${condition.tables.map(
        (name) => html`<li key=${name}><a class="mono" href=${`${list}/${encodeURIComponent(name)}`}>${name}</a>
          ${offered(name)}</li>`,
      )}
      ${
        rest > 0 &&
        html`<li><a href=${`${list}?phase=quarantined`}>and ${plural(rest, "more table", "more tables")}</a></li>`
      }
    </ul>`;
}

/** Those that a person knows of: by whom, why and until when, and how to take that back. */
function Acknowledged({ conditions, me, named, back }) {
  const until = ({ until: end }) => (end ? `until ${moment(end)}` : "until it ends");
  return html`
    <details class="acknowledged"><summary>${plural(conditions.length, "acknowledged condition")}</summary>
      <ul>${conditions.map(
        (each) => html`
        <li key=${each.id}><div><p><${Of} condition=${each} named=${named} />${sentence(each.summary)}
            <span class="quiet"> ${lasting(each.since)}</span></p>
          <p class="small soft">Acknowledged by ${each.acknowledged.by} at ${moment(each.acknowledged.at)},
            ${" "}${until(each.acknowledged)}: ${sentence(each.acknowledged.note)}</p></div>
          <${Button} size="small" icon="back" reason=${mayAcknowledge(me)} onClick=${() => back(each)}>Take back<//>
        </li>`,
      )}</ul>
    </details>`;
}

/** A role that is missing, as a card among the services. `conditions`: of that role; `runs`: whether one is alive. */
export function MissingRole({ role, conditions, runs }) {
  const name = roleName(role);
  const [oldest] = [...conditions].sort((a, b) => a.since - b.since);
  const tone = SEVERITY_TONES[conditions[0].severity];
  return html`
    <li class="card service missing tone-${tone}">
      <h2 class="service-name"><${Icon} name="warning" /><span>No ${name} ${runs ? "leads" : "runs"}</span></h2>
      <p class="soft">${lasting(oldest.since).replace("for", "For")}</p>
      ${conditions[0].cause && html`<p>${prose(sentence(conditions[0].cause))}</p>`}
      ${conditions[0].remedy && html`<p>${prose(sentence(conditions[0].remedy))}</p>`}
      <p class="small">Without one: ${conditions.map(
        (each, i) => html`${i ? ", " : ""}<a href=${link("pipelines", each.pipeline)}>${each.pipeline}</a>`,
      )}</p>
    </li>`;
}
