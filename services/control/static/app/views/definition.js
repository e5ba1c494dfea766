// The definition: its versions with their authors, the difference between two of them, and a change with its plan.
import { act, get, getAll, pipelinePath } from "../api.js";
import { ago, label, lineDiff, moment, yaml } from "../format.js";
import { usePoll } from "../hooks.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { may, OPERATIONS, reasonAgainst } from "../operations.js";
import { Button, Card, Failure, Loading, Notice, Polled, Segments } from "../parts/basics.js";
import { AreaField, byField, TextField } from "../parts/fields.js";
import { follow } from "../parts/operate.js";
import { Plan } from "../parts/plan.js";

export function Definition({ pipeline, me, ask, refresh }) {
  const versions = usePoll(
    (signal) => getAll(pipelinePath(pipeline.name, "/versions"), { signal }),
    5,
    `versions ${pipeline.name}`,
  );
  const [editing, setEditing] = useState(null);
  const [error, setError] = useState(null);
  const before = useRef(null);
  useEffect(() => {
    // the field, and after it the button that opened it
    if (editing || before.current) document.querySelector(editing ? ".editor textarea" : "[data-change]")?.focus();
    before.current = editing;
  }, [editing]);
  const edit = async () => {
    try {
      const fresh = await get(pipelinePath(pipeline.name));
      setEditing({ text: yaml(fresh.definition), version: fresh.version });
      setError(null);
    } catch (failed) {
      setError(failed);
    }
  };
  if (editing)
    return html`<${Editor} pipeline=${pipeline} start=${editing} onEnd=${() => {
      setEditing(null);
      versions.refresh();
      refresh();
    }} />`;
  return html`
    <div class="stack">
      ${error && html`<${Failure} error=${error} />`}
      <${Polled} of=${versions} what="versions" within>${(all) => html`<${Versions} pipeline=${pipeline} all=${[...all].sort((a, b) => b.version - a.version)} me=${me} ask=${ask} edit=${edit} />`}<//>
    </div>`;
}

function Versions({ pipeline, all, me, ask, edit }) {
  const [chosen, setChosen] = useState(null);
  const [shown, setShown] = useState("definition");
  const version = chosen ?? all[0]?.version ?? 1;
  const before = all.find((item) => item.version < version)?.version ?? null;
  const text = usePoll(
    async (signal) => {
      const read = async (number) =>
        number === null
          ? null
          : yaml(definitionOf(await get(pipelinePath(pipeline.name, `/versions/${number}`), { signal })));
      const [current, previous] = await Promise.all([read(version), read(before)]);
      return { current, previous };
    },
    0,
    `version ${pipeline.name} ${version} ${before}`,
  );
  const restorable = version !== all[0]?.version;
  return html`
    <div class="definition">
      <${Card} title="Versions" body=${false} end=${html`<${Button} size="small" icon="writer" data-change reason=${may(me, "admin") ? null : "needs the role admin"} onClick=${edit}>Change<//>`}>
        <ol class="versions">${all.map(
          (item) => html`
          <li key=${item.version}><button type="button" aria-pressed=${item.version === version ? "true" : "false"} onClick=${() => setChosen(item.version)}>
            <span class="row spread"><b>Version ${label(item.version)}</b>${item.version === pipeline.version_in_force && html`<span class="badge tone-live">in force</span>`}</span>
            <span class="small soft">${item.note || (item.version === 1 ? "as it was created" : "no note")}</span><span class="small quiet">${item.by ? `by ${item.by}, ` : ""}${item.at ? html`<span title=${moment(item.at)}>${ago(item.at)}</span>` : null}</span></button></li>`,
        )}</ol>
      <//>
      <section class="card" aria-label=${`Version ${version}`}>
        <div class="card-head"><h2>Version ${label(version)}</h2>
          ${before !== null && html`<${Segments} label="Show" value=${shown} onChange=${setShown} options=${[["definition", "Whole"], ["changes", `Changes since ${before}`]]} />`}
          ${restorable && html`<${Button} size="small" icon="back" reason=${reasonAgainst(OPERATIONS.restore_version, { pipeline }, me)} onClick=${() => ask("restore_version", { version })}>Bring back<//>`}</div>
        <div class="card-body">${text.data ? (shown === "changes" && text.data.previous !== null ? html`<${Diff} before=${text.data.previous} after=${text.data.current} />` : html`<pre class="code" tabindex="0" aria-label=${`Definition, version ${version}`}>${text.data.current}</pre>`) : text.error ? html`<${Failure} error=${text.error} />` : html`<${Loading} what="the version" />`}</div>
      </section>
    </div>`;
}

const definitionOf = (view) => view.definition ?? view;

function Diff({ before, after }) {
  const lines = lineDiff(before, after);
  const words = { " ": "", "-": "removed: ", "+": "added: " };
  if (lines.every(([sign]) => sign === " ")) return html`<p class="quiet">Nothing differs.</p>`;
  return html`<pre class="code diff" tabindex="0" aria-label="Changes">${lines.map(([sign, line], i) => html`<span key=${i} class=${{ "-": "removed", "+": "added" }[sign] ?? ""}><span class="hidden">${words[sign]}</span><span aria-hidden="true">${sign} </span>${line || " "}</span>`)}</pre>`;
}

function Editor({ pipeline, start, onEnd }) {
  const [text, setText] = useState(start.text);
  const [note, setNote] = useState("");
  const [plan, setPlan] = useState(null);
  const [busy, setBusy] = useState("");
  const [error, setError] = useState(null);
  const send = async (what, work) => {
    setBusy(what);
    setError(null);
    try {
      await work();
    } catch (failed) {
      setError(failed);
    }
    setBusy("");
  };
  const type = { "Content-Type": "application/yaml" };
  const showPlan = () =>
    send("plan", async () => setPlan(await act("POST", pipelinePath(pipeline.name, "/plan"), text, type)));
  const apply = () =>
    send("apply", async () => {
      const query = note ? `?note=${encodeURIComponent(note)}` : "";
      const command = await act("PUT", pipelinePath(pipeline.name, query), text, {
        ...type,
        "If-Match": `"${start.version}"`,
      });
      follow(command, { title: "Change the definition", icon: "writer" }, onEnd);
      onEnd();
    });
  const errors = byField(error);
  const changed = text !== start.text;
  return html`
    <${Card} title="Change the definition" end=${html`<${Button} size="small" kind="plain" icon="cross" onClick=${onEnd}>Discard<//>`}>
      <div class="stack">
        <div class="editor"><${AreaField} label="Definition (YAML)" rows="22" value=${text} onInput=${(value) => {
          setText(value);
          setPlan(null);
        }} error=${errors[""]} />
          <div class="stack"><h3>What changed</h3>${changed ? html`<${Diff} before=${start.text} after=${text} />` : html`<p class="quiet">Nothing yet.</p>`}</div></div>
        <${TextField} label="Note" optional placeholder="why it changes, for those who read the history" value=${note} onInput=${setNote} />
        ${error && html`<${Failure} error=${error} />`}
        ${plan ? html`<${Plan} plan=${plan} />` : html`<${Notice} title="The plan comes first"><p>Let Cutline say what the change will do before you apply it. It takes effect with the next checkpoint, and nothing stops for it.</p><//>`}
        <div class="actions"><${Button} icon="search" busy=${busy === "plan"} reason=${changed ? null : "nothing changed"} onClick=${showPlan}>Show the plan<//>
          <${Button} kind="primary" busy=${busy === "apply"} reason=${!plan ? "look at the plan first" : plan.possible ? null : "the plan has faults to be mended first"} onClick=${apply}>Apply the change<//></div>
      </div>
    <//>`;
}
