// A change of a definition: in the form or as YAML, with what differs, the plan, and a note for the history.
import { act, get, pipelinePath } from "../api.js";
import { useDraft } from "../drafts.js";
import { label, lineDiff, yaml } from "../format.js";
import { html, useState } from "../html.js";
import { Button, Card, Failure, Loading, Notice, Segments } from "../parts/basics.js";
import { AreaField, byField, TextField } from "../parts/fields.js";
import { follow } from "../parts/operate.js";
import { changed, PipelineForm, tidy, useSchema } from "../parts/pipelineform.js";
import { Plan } from "../parts/plan.js";
import { FIXED } from "../rules.js";

const YAML = { "Content-Type": "application/yaml" };

/** The name under which a pipeline's unfinished change is kept. */
export const draftOf = (pipeline) => `change of ${pipeline.name} ${pipeline.id}`;

/** What a change begins with: the definition as it is now. */
export async function beginning(name) {
  const { definition, version } = await get(pipelinePath(name));
  return { version, before: definition, draft: definition, text: null, note: "" };
}

/** `start`: of `beginning`, or null if the change goes on from what is kept. `onEnd`: called when it is over. */
export function Change({ pipeline, start, onEnd }) {
  const [values, set, forget, restored] = useDraft(draftOf(pipeline), start);
  const schema = useSchema();
  const [plan, setPlan] = useState(null);
  const [busy, setBusy] = useState("");
  const [error, setError] = useState(null);
  const { version, before, draft, text, note } = values;
  const body = tidy(draft, true);
  const [was, is] = text === null ? [yaml(tidy(before, true)), yaml(body)] : [yaml(before), text];
  const differs = was !== is;
  const [content, type] = text === null ? [body, {}] : [text, YAML];
  const change = (some) => {
    setPlan(null);
    set(some);
  };
  const end = () => {
    forget();
    onEnd();
  };
  const send = async (what, work) => {
    setBusy(what);
    setError(null);
    try {
      await work();
    } catch (failed) {
      setError(failed);
      requestAnimationFrame(() => document.querySelector(".editor [aria-invalid=true]")?.focus());
    }
    setBusy("");
  };
  const showPlan = () =>
    send("plan", async () => setPlan(await act("POST", pipelinePath(pipeline.name, "/plan"), content, type)));
  const apply = () =>
    send("apply", async () => {
      const query = note ? `?note=${encodeURIComponent(note)}` : "";
      const headers = { ...type, "If-Match": `"${version}"` };
      const command = await act("PUT", pipelinePath(pipeline.name, query), content, headers);
      follow(command, { title: "Change the definition", icon: "writer" }, onEnd);
      end();
    });
  const reason = !plan ? "look at the plan first" : plan.possible ? null : "fix the faults of the plan first";
  return html`
    <${Card} title="Change the definition" end=${html`<${Forms} values=${values} change=${change} />
      <${Button} size="small" kind="plain" icon="cross" onClick=${end}>Discard<//>`}>
      <div class="stack">
        ${restored && html`<${Restored} version=${version} newest=${pipeline.version} />`}
        <div class="editor">
          ${
            text === null
              ? html`<${Fields} ...${{ schema, draft, body, error, change }} />`
              : html`<${AreaField} label="Definition (YAML)" rows="22" value=${text} error=${byField(error)[""]}
                  onInput=${(typed) => change({ text: typed })} />`
          }
          <div class="stack editor-diff"><h3>What changed</h3>
            ${differs ? html`<${Diff} before=${was} after=${is} />` : html`<p class="quiet">Nothing yet.</p>`}</div>
        </div>
        <${TextField} label="Note" optional placeholder="why it changes, for those who read the history" value=${note}
          onInput=${(typed) => set({ note: typed })} />
        ${error && html`<${Failure} error=${error} />`}
        ${plan ? html`<${Plan} plan=${plan} />` : html`<${First} />`}
        <div class="actions">
          <${Button} icon="search" busy=${busy === "plan"} reason=${differs ? null : "nothing changed"}
            onClick=${showPlan}>Show the plan<//>
          <${Button} kind="primary" busy=${busy === "apply"} reason=${reason} onClick=${apply}>Apply the change<//>
        </div>
      </div>
    <//>`;
}

/** Form or YAML. What is typed as YAML the form can't read, so it is given up before the form comes back. */
const Forms = ({ values, change }) => html`
  <${Segments} label="Change it" value=${values.text === null ? "form" : "yaml"} options=${[
    ["form", values.text !== null && values.text !== yaml(values.draft) ? "Form, without what is typed here" : "Form"],
    ["yaml", "YAML"],
  ]} onChange=${(id) => change({ text: id === "form" ? null : yaml(values.draft) })} />`;

function Fields({ schema, draft, body, error, change }) {
  if (!schema) return html`<${Loading} what="the form" />`;
  return html`
    <form class="stack" onSubmit=${(event) => event.preventDefault()}>
      <${PipelineForm} schema=${schema} draft=${draft} body=${body} errors=${byField(error)} begun
        set=${(path, value) => change((now) => ({ draft: changed(now.draft, path.split("."), value) }))} />
      <p class="small quiet">Not here, since a pipeline keeps them for life: ${FIXED.join(", ")}.
        ${" "}A new pipeline can have others.</p>
    </form>`;
}

const Restored = ({ version, newest }) =>
  newest > version
    ? html`<${Notice} tone="warn" icon="warning" title=${`Version ${label(newest)} was made since you began`}>
        <p>This is your change of version ${label(version)}. Discard it, and make it again in the newest one.</p><//>`
    : html`<${Notice} icon="info" title="Your change is as you left it">
        <p>Secrets that you typed are not kept: type them again.</p><//>`;

const First = () => html`
  <${Notice} title="The plan comes first"><p>Let Cutline say what the change will do before you apply it. It takes
    effect with the next checkpoint, and nothing stops for it.</p><//>`;

/** Two texts as lines, those removed and added. */
export function Diff({ before, after }) {
  const lines = lineDiff(before, after);
  const words = { " ": "", "-": "removed: ", "+": "added: " };
  const kinds = { "-": "removed", "+": "added" };
  if (lines.every(([sign]) => sign === " ")) return html`<p class="quiet">Nothing differs.</p>`;
  const spoken = (sign) => html`<span class="hidden">${words[sign]}</span><span aria-hidden="true">${sign} </span>`;
  return html`<pre class="code diff" tabindex="0" aria-label="Changes">${lines.map(
    ([sign, line], i) => html`<span key=${i} class=${kinds[sign] ?? ""}>${spoken(sign)}${line || " "}</span>`,
  )}</pre>`;
}
