// A new pipeline: source and its test, the tables found, the lake, settings with the API's own descriptions, the plan, the start.
import { act, get } from "../api.js";
import { plural, yaml } from "../format.js";
import { go, link } from "../hooks.js";
import { html, useEffect, useMemo, useState } from "../html.js";
import { Icon } from "../icons.js";
import { may } from "../operations.js";
import { Button, Card, Failure, Notice, prose, sentence } from "../parts/basics.js";
import { byField, NumberField, SelectField, TextField } from "../parts/fields.js";
import { TablePicker } from "../parts/picker.js";
import { Plan } from "../parts/plan.js";
import { resolved, SettingField, showable } from "../parts/schemaform.js";

const START = {
  name: "",
  source: { host: "", port: 3306, user: "" },
  tables: [],
  sink: { type: "iceberg", warehouse: "" },
};
const SECTIONS = ["snapshot", "checkpoint", "retention", "values"];
const TLS_MODES = [
  ["", "default: verified, none on loopback"],
  ["disabled", "disabled"],
  ["required", "required, not verified"],
  ["verify-ca", "verify the authority"],
  ["verify-identity", "verify the identity"],
];
const WORDS = ["schema_changes", "keyless", "unlogged_cascades"];

const EMPTY = { draft: START, secret: "password_env", hosts: "" };
let left = EMPTY; // what was typed when a person left the form: it is there again when they come back

export function Create({ me }) {
  const [draft, setDraft] = useState(left.draft);
  const [secret, setSecret] = useState(left.secret);
  const [hosts, setHosts] = useState(left.hosts);
  left = { draft, secret, hosts };
  const [schema, setSchema] = useState(null);
  const [test, setTest] = useState({ state: "none" });
  const [plan, setPlan] = useState(null);
  const [busy, setBusy] = useState("");
  const [error, setError] = useState(null);
  useEffect(() => {
    get("/v1/schema").then(setSchema, () => setSchema({}));
  }, []);
  const set = (path, value) => {
    setPlan(null);
    setDraft((before) => changed(before, path.split("."), value));
    if (path.startsWith("source.")) setTest({ state: "none" });
  };
  const errors = byField(error);
  const body = useMemo(() => tidy(draft), [draft]);
  const description = (path) => {
    let at = schema ? { schema } : null;
    for (const key of path.split(".")) at = at && resolved(schema, at.schema.properties?.[key]);
    return at?.schema.description ? prose(sentence(at.schema.description)) : undefined;
  };
  const field = (path, label, more = {}) =>
    html`<${TextField} label=${label} hint=${description(path)} error=${errors[path]} value=${path.split(".").reduce((at, key) => at?.[key], draft)} onInput=${(value) => set(path, value)} ...${more} />`;
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
  const tryOut = async () => {
    setTest({ state: "asking" });
    try {
      setTest({ state: "known", found: await act("POST", "/v1/source/test", { source: body.source }) });
    } catch (failed) {
      setTest({ state: "failed", error: failed });
      setError(failed.errors?.length ? failed : null);
    }
  };
  const showPlan = () => attempt("plan", async () => setPlan(await act("POST", "/v1/pipelines?dry_run=true", body)));
  const start = () =>
    attempt("start", async () => {
      await act("POST", "/v1/pipelines", body);
      setDraft(START);
      setSecret(EMPTY.secret);
      setHosts(EMPTY.hosts);
      go(link("pipelines", body.name));
    });
  if (!may(me, "admin"))
    return html`<h1 tabindex="-1">New pipeline</h1><br /><${Notice} tone="warn" icon="key" title="Only an admin can make a pipeline"><p>You are ${me?.role ?? "not logged in"}. Ask an admin for a token with that role.</p><//>`;
  return html`
    <div class="page-head"><div><nav class="crumbs" aria-label="Breadcrumb"><a href="#/">Pipelines</a></nav><h1 tabindex="-1">New pipeline</h1><p>From MySQL or MariaDB into Iceberg. Nothing starts before you have seen the plan.</p></div></div>
    <div class="create">
      <form class="stack" onSubmit=${(event) => {
        event.preventDefault();
        (plan ? start : showPlan)();
      }}>
        <${Step} number="1" title="Source" note=${html`<${TestResult} test=${test} />`}>
          <div class="fields">
            ${field("name", "Name of the pipeline", { placeholder: "shop", maxlength: 63 })}
            ${field("source.host", "Host", { placeholder: "db.example.com" })}
            <${NumberField} label="Port" hint=${description("source.port")} error=${errors["source.port"]} value=${draft.source.port} onInput=${(value) => set("source.port", value)} />
            ${field("source.user", "User", { placeholder: "cdc" })}
            <${SelectField} label="The password is in" value=${secret} options=${[["password_env", "an environment variable"], ["password_file", "a file"], ["none", "nothing: there is none"]]} hint="Cutline stores where the password is, never the password." onInput=${(
              value,
            ) => {
              setSecret(value);
              set("source", { ...draft.source, password_env: undefined, password_file: undefined });
            }} />
            ${secret !== "none" && field(`source.${secret}`, secret === "password_env" ? "Variable of the services" : "File on the services' machines", { placeholder: secret === "password_env" ? "SHOP_PASSWORD" : "/run/secrets/shop" })}
            <${TextField} label="Other servers" optional placeholder="db2.example.com:3306" hint=${description("source.hosts")} error=${errors["source.hosts"]} value=${hosts} onInput=${(
              text,
            ) => {
              setHosts(text);
              set("source.hosts", text.split(/[\s,]+/).filter(Boolean));
            }} />
            <${SelectField} label="TLS" hint=${description("source.tls")} error=${errors["source.tls"] ?? errors["source.tls.mode"]} value=${draft.source.tls?.mode ?? ""} options=${TLS_MODES} onInput=${(mode) => set("source.tls", mode === "disabled" ? { mode } : { ...draft.source.tls, mode, ...(mode === "required" ? { ca: undefined } : {}) })} />
            ${!["disabled", "required"].includes(draft.source.tls?.mode) && field("source.tls.ca", "CA certificates", { optional: true, placeholder: "/etc/cutline/ca.pem" })}
            ${["required", "verify-ca", "verify-identity"].includes(draft.source.tls?.mode) && [field("source.tls.cert", "Client certificate", { optional: true, key: "cert" }), field("source.tls.key", "Its private key", { optional: true, key: "key" })]}
          </div>
          <div class="actions"><${Button} icon="search" busy=${test.state === "asking"} reason=${draft.source.host ? null : "Host is missing"} onClick=${tryOut}>Test the connection<//></div>
          ${test.state === "failed" && html`<${Failure} error=${test.error} />`}
          ${test.found?.faults.length > 0 && html`<${Notice} tone="bad" icon="warning" title=${test.found.server ? `${test.found.server} can't be read yet` : "The source can't be read"}><ul class="plan-list">${test.found.faults.map((fault) => html`<li key=${fault.detail}>${sentence(fault.detail)} ${sentence(fault.remedy)}</li>`)}</ul><//>`}
        <//>
        <${Step} number="2" title="Tables" note=${draft.tables.length ? html`<span class="small soft">${plural(draft.tables.length, "pattern")}</span>` : null}>
          <${TablePicker} source=${body.source} values=${body.values} ready=${Boolean(test.found?.server)} patterns=${draft.tables} error=${errors.tables ?? errors["tables.0"]} onChange=${(tables) => set("tables", tables)} />
        <//>
        <${Step} number="3" title="Lake">
          <div class="fields">${field("sink.warehouse", "Warehouse", { placeholder: "s3://lake/warehouse" })}
            ${schema?.properties && ["start"].map(() => html`<${SelectField} key="start" label="Where to begin" hint=${description("start")} error=${errors.start} value=${draft.start ?? ""} options=${[["", "initial: a snapshot, then changes"], ["snapshot-only", "snapshot-only"], ["latest", "latest: only changes from now on"], ["earliest", "earliest: changes since the oldest binlog"]]} onInput=${(value) => set("start", value || undefined)} />`)}
            ${schema?.properties && WORDS.filter((name) => schema.properties[name] && showable(schema, schema.properties[name])).map((name) => html`<${SettingField} key=${name} root=${schema} name=${name} schema=${schema.properties[name]} value=${draft[name]} error=${errors[name]} onInput=${(value) => set(name, value)} />`)}
          </div>
        <//>
        ${
          schema?.properties &&
          html`<details class="card more-settings"><summary>More settings <span class="quiet small">each has a default that fits most</span></summary>
          ${SECTIONS.filter((name) => schema.properties[name]).map((name) => html`<${Section} key=${name} schema=${schema} name=${name} values=${draft[name] ?? {}} errors=${errors} set=${set} />`)}</details>`
        }
        ${error && html`<${Failure} error=${error} />`}
        ${plan && html`<section class="card"><div class="card-body"><${Plan} plan=${plan} /></div></section>`}
        <div class="actions create-end">
          <${Button} type="submit" kind=${plan ? "" : "primary"} icon="search" busy=${busy === "plan"} onClick=${(
            event,
          ) => {
            event.preventDefault();
            showPlan();
          }}>Show the plan<//>
          <${Button} kind=${plan ? "primary" : ""} icon="play" busy=${busy === "start"} reason=${!plan ? "look at the plan first" : !plan.possible ? "mend the faults of the plan first" : null} onClick=${start}>Create the pipeline<//>
        </div>
      </form>
      <aside class="create-side" aria-label="The pipeline file"><${Card} title="pipeline.yaml"><pre class="code" tabindex="0">${yaml(body)}</pre><p class="small quiet">The same content works with <code>cutline run</code>.</p><//></aside>
    </div>`;
}

const Step = ({ number, title, note, children }) => html`
  <section class="card" aria-label=${title}><div class="card-head"><h2 class="step-title"><span class="step" aria-hidden="true">${number}</span>${title}</h2>${note}</div><div class="card-body stack">${children}</div></section>`;

function TestResult({ test }) {
  if (test.state === "asking")
    return html`<span class="badge tone-snapshot"><span class="spinner"></span>asking</span>`;
  if (test.state === "failed")
    return html`<span class="badge tone-quarantined" role="status"><${Icon} name="warning" size=${12} />not usable</span>`;
  if (test.state !== "known") return null;
  const { found } = test;
  if (!found.ok)
    return html`<span class="badge tone-quarantined" role="status"><${Icon} name="warning" size=${12} />${plural(found.faults.length, "fault")}</span>`;
  return html`<span class="badge tone-live" role="status"><${Icon} name="check" size=${12} />${found.server}</span>`;
}

function Section({ schema, name, values, errors, set }) {
  const found = resolved(schema, schema.properties[name]).schema;
  const names = Object.keys(found.properties ?? {}).filter((key) => showable(schema, found.properties[key]));
  return html`<fieldset class="settings"><legend>${name.replace(/^./, (first) => first.toUpperCase())}</legend>
    <div class="fields">${names.map((key) => html`<${SettingField} key=${key} root=${schema} name=${key} schema=${found.properties[key]} value=${values[key]} error=${errors[`${name}.${key}`]} onInput=${(value) => set(`${name}.${key}`, value)} />`)}</div></fieldset>`;
}

const changed = (object, [key, ...rest], value) => ({
  ...object,
  [key]: rest.length ? changed(object?.[key] ?? {}, rest, value) : value,
});

/** The draft without what was left empty. */
function tidy(value) {
  if (Array.isArray(value) || value === null || typeof value !== "object") return value;
  const kept = Object.entries(value)
    .filter(([, item]) => item !== undefined && item !== null && item !== "" && !(Array.isArray(item) && !item.length))
    .map(([key, item]) => [key, tidy(item)]);
  return Object.fromEntries(
    kept.filter(
      ([, item]) => !(item && typeof item === "object" && !Array.isArray(item) && Object.keys(item).length === 0),
    ),
  );
}
