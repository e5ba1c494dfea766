// What a new pipeline or a change will do, before it does it.
import { bytes, count, plural, short, span } from "../format.js";
import { html, useState } from "../html.js";
import { Icon } from "../icons.js";
import { Button, Notice, sentence } from "./basics.js";

const ACTIONS = [
  ["read", "plus", "live", "read from the beginning"],
  ["read again", "again", "snapshot", "read again as the next generation; readers see the old rows until then"],
  ["remove", "minus", "quarantined", "no longer copied"],
  ["quarantine", "warning", "quarantined", "quarantined until fixed"],
  ["keep", "check", "waiting", "as before"],
];
const QUIET = ["table", "retention", "analysis"]; // findings that stand in no way
const SHOWN = 12;
const MORE = 200;

export function Plan({ plan }) {
  const against = plan.findings.filter((finding) => !finding.ok && !QUIET.includes(finding.check));
  const cautions = plan.findings.filter((finding) => !finding.ok && ["retention", "analysis"].includes(finding.check));
  const good = plan.findings.filter((finding) => finding.ok);
  return html`
    <section class="plan" aria-label="Plan">
      <h3>The plan${plan.exists ? ` for ${plan.pipeline}` : ""}</h3>
      ${
        against.length > 0
          ? html`<${Notice} tone="bad" icon="warning" title=${`${plural(against.length, "fault")} to be fixed first`}>
        <ul class="plan-list">${against.map((finding) => html`<li key=${finding.found}>${finding.place && html`<b class="mono">${finding.place}</b> `}${sentence(finding.found)} ${sentence(finding.remedy)}</li>`)}</ul><//>`
          : html`<${Notice} tone="good" icon="check" title="Nothing stands in the way"><ul>${good.map((finding) => html`<li key=${finding.found} class="soft">${sentence(finding.found)}</li>`)}</ul><//>`
      }
      ${cautions.map((finding) => html`<${Notice} key=${finding.check} tone="warn" icon="clock" title=${sentence(finding.found)}><p>${sentence(finding.remedy)}</p><//>`)}
      ${
        plan.rows > 0 &&
        html`<dl class="plan-figures">
        <div><dt>Rows to read</dt><dd>about ${short(plan.rows)}</dd></div><div><dt>Bytes to read</dt><dd>about ${bytes(plan.bytes)}</dd></div>
        <div><dt>First reading</dt><dd>about ${span(plan.seconds)}<p class="small quiet">at ${plan.rate}</p></dd></div></dl>`
      }
      ${ACTIONS.map(([action, icon, tone, words]) => html`<${Group} key=${action} tables=${plan.tables.filter((table) => table.action === action)} icon=${icon} tone=${tone} words=${words} />`)}
      ${
        plan.changes.length > 0 &&
        html`<div><h4>Settings that change</h4><ul class="plan-list">${plan.changes.map(
          (change) => html`
        <li key=${change.key}><b class="mono">${change.key}</b> <span class="mono soft">${JSON.stringify(change.before)} → ${JSON.stringify(change.after)}</span><div class="small ${change.possible ? "quiet" : "cause"}">${sentence(change.effect)}</div></li>`,
        )}</ul></div>`
      }
    </section>`;
}

function Group({ tables, icon, tone, words }) {
  const [shown, setShown] = useState(SHOWN);
  if (!tables.length) return null;
  return html`
    <div><h4 class="tone-${tone}"><${Icon} name=${icon} size=${14} /> ${plural(tables.length, "table")} ${words}</h4>
      <ul class="plan-list plan-tables">${tables.slice(0, shown).map(
        (table) => html`
        <li key=${table.table}><span class="row spread"><b>${table.table}</b><span class="small quiet number">${table.rows === null ? "" : `about ${short(table.rows)} rows`}</span></span>${table.causes.map((cause) => html`<p key=${cause} class="small cause">${sentence(cause)}</p>`)}</li>`,
      )}
        </ul>
      ${tables.length > shown && html`<${Button} size="small" kind="plain" icon="down" onClick=${() => setShown(shown + MORE)}>Show ${count(Math.min(MORE, tables.length - shown))} more of ${count(tables.length - shown)}<//>`}</div>`;
}
