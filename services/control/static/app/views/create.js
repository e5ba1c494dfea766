// A new pipeline: the form, its file as it grows, the plan, the start.
import { act } from "../api.js";
import { useDraft } from "../drafts.js";
import { yaml } from "../format.js";
import { go, link } from "../hooks.js";
import { html, useMemo, useState } from "../html.js";
import { may } from "../operations.js";
import { Button, Card, Failure, Notice } from "../parts/basics.js";
import { byField } from "../parts/fields.js";
import { changed, PipelineForm, tidy, useSchema } from "../parts/pipelineform.js";
import { Plan } from "../parts/plan.js";

const START = {
  name: "",
  source: { host: "", port: 3306, user: "", password_env: "" },
  tables: [],
  sink: { type: "iceberg", warehouse: "" },
};

export function Create({ me }) {
  if (may(me, "admin")) return html`<${Form} />`;
  return html`<h1 tabindex="-1">New pipeline</h1><br />
    <${Notice} tone="warn" icon="key" title="Only an admin can make a pipeline">
      <p>You are ${me?.role ?? "not logged in"}. Ask an admin for a token with that role.</p><//>`;
}

function Form() {
  const [draft, setDraft, forget] = useDraft("new", START);
  const schema = useSchema();
  const [plan, setPlan] = useState(null);
  const [busy, setBusy] = useState("");
  const [error, setError] = useState(null);
  const set = (path, value) => {
    setPlan(null);
    setDraft((before) => changed(before, path.split("."), value));
  };
  const errors = byField(error);
  const body = useMemo(() => tidy(draft), [draft]);
  const attempt = async (what, work) => {
    setBusy(what);
    setError(null);
    try {
      await work();
    } catch (failed) {
      setError(failed);
      requestAnimationFrame(() => document.querySelector("[aria-invalid=true]")?.focus());
    }
    setBusy("");
  };
  const showPlan = () => attempt("plan", async () => setPlan(await act("POST", "/v1/pipelines?dry_run=true", body)));
  const start = () =>
    attempt("start", async () => {
      await act("POST", "/v1/pipelines", body);
      forget();
      go(link("pipelines", body.name));
    });
  const reason = !plan ? "look at the plan first" : plan.possible ? null : "fix the faults of the plan first";
  return html`
    <div class="page-head"><div><nav class="crumbs" aria-label="Breadcrumb"><a href="#/">Pipelines</a></nav>
      <h1 tabindex="-1">New pipeline</h1>
      <p>From MySQL or MariaDB into Iceberg. Nothing starts before you have seen the plan.</p></div></div>
    <div class="create">
      <form class="stack" onSubmit=${(event) => {
        event.preventDefault();
        (plan ? start : showPlan)();
      }}>
        <${PipelineForm} schema=${schema} draft=${draft} body=${body} set=${set} errors=${errors} />
        ${error && html`<${Failure} error=${error} />`}
        ${plan && html`<section class="card"><div class="card-body"><${Plan} plan=${plan} /></div></section>`}
        <div class="actions create-end">
          <${Button} type="submit" kind=${plan ? "" : "primary"} icon="search" busy=${busy === "plan"}
            onClick=${(event) => {
              event.preventDefault();
              showPlan();
            }}>Show the plan<//>
          <${Button} kind=${plan ? "primary" : ""} icon="play" busy=${busy === "start"} reason=${reason}
            onClick=${start}>Create the pipeline<//>
        </div>
      </form>
      <aside class="create-side" aria-label="The pipeline file"><${Card} title="pipeline.yaml">
        <pre class="code" tabindex="0">${yaml(body)}</pre>
        <p class="small quiet">The same content works with <code>cutline run</code>.</p><//></aside>
    </div>`;
}
