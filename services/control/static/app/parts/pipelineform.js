// The settings of a pipeline as a form, with the API's own descriptions: of a new one, and of one that is there.
import { act, get } from "../api.js";
import { plural } from "../format.js";
import { html, useEffect, useState } from "../html.js";
import { Icon } from "../icons.js";
import { FIXED } from "../rules.js";
import { Button, Failure, Notice, prose, sentence } from "./basics.js";
import { NumberField, SelectField, TextField } from "./fields.js";
import { TablePicker } from "./picker.js";
import { RuleForms } from "./ruleform.js";
import { resolved, SettingField, showable } from "./schemaform.js";

const SECTIONS = ["snapshot", "checkpoint", "retention", "values"];
const WORDS = ["schema_changes", "keyless", "unlogged_cascades"];
const TLS_MODES = [
  ["", "default: verified, none on loopback"],
  ["disabled", "disabled"],
  ["required", "required, not verified"],
  ["verify-ca", "verify the authority"],
  ["verify-identity", "verify the identity"],
];
const SECRETS = [
  ["password_env", "an environment variable"],
  ["password_file", "a file"],
  ["none", "nothing: there is none"],
];
const STARTS = [
  ["", "initial: a snapshot, then changes"],
  ["snapshot-only", "snapshot-only"],
  ["latest", "latest: only changes from now on"],
  ["earliest", "earliest: changes since the oldest binlog"],
];

/** The JSON Schema of pipeline.yaml: null while it loads, {} if it can't be had. */
export function useSchema() {
  const [schema, setSchema] = useState(null);
  useEffect(() => {
    get("/v1/schema").then(setSchema, () => setSchema({}));
  }, []);
  return schema;
}

/** An object with the value at this path changed. */
export const changed = (object, [key, ...rest], value) => ({
  ...object,
  [key]: rest.length ? changed(object?.[key] ?? {}, rest, value) : value,
});

/** The draft without what was left empty. `nulls`: keep null, which is a value where it is not the default. */
export function tidy(value, nulls = false) {
  if (Array.isArray(value) || value === null || typeof value !== "object") return value;
  const empty = (item) =>
    item === undefined || item === "" || (item === null && !nulls) || (Array.isArray(item) && !item.length);
  const kept = Object.entries(value)
    .filter(([, item]) => !empty(item))
    .map(([key, item]) => [key, tidy(item, nulls)]);
  const bare = (item) => item && typeof item === "object" && !Array.isArray(item) && !Object.keys(item).length;
  return Object.fromEntries(kept.filter(([, item]) => !bare(item)));
}

/** Whether a pipeline keeps this setting for life. */
const isFixed = (path) => FIXED.some((name) => path === name || path.startsWith(`${name}.`));

/**
 * `draft`: the definition so far; `set(path, value)`; `errors`: the API's, by field; `body`: the draft as it is sent.
 * `begun`: the pipeline is there, so that what it keeps for life is not asked for.
 */
export function PipelineForm({ schema, draft, body, set, errors, begun = false }) {
  const [test, setTest] = useState({ state: "none" });
  const source = JSON.stringify(body.source);
  useEffect(() => setTest({ state: "none" }), [source]);
  const tryOut = async () => {
    setTest({ state: "asking" });
    try {
      const found = await act("POST", "/v1/source/test", { source: body.source });
      setTest({ state: "known", found });
    } catch (error) {
      setTest({ state: "failed", error });
    }
  };
  const faults = { ...byFields(test.error), ...errors };
  const description = (path) => {
    let at = schema ? { schema } : null;
    for (const key of path.split(".")) at = at && resolved(schema, at.schema.properties?.[key]);
    return at?.schema.description ? prose(sentence(at.schema.description)) : undefined;
  };
  const about = (path) => ({
    hint: description(path),
    error: faults[path],
    value: path.split(".").reduce((at, key) => at?.[key], draft),
    onInput: (value) => set(path, value),
  });
  const asked = (path) => !begun || !isFixed(path);
  const shared = { schema, draft, set, about, asked };
  return html`
    <${Step} number="1" title="Source" note=${html`<${TestResult} test=${test} />`}>
      <${Source} ...${shared} errors=${faults} />
      <div class="actions"><${Button} icon="search" busy=${test.state === "asking"}
        reason=${draft.source.host ? null : "Host is missing"} onClick=${tryOut}>Test the connection<//></div>
      ${test.state === "failed" && html`<${Failure} error=${test.error} />`}
      ${test.found?.faults.length > 0 && html`<${Faults} found=${test.found} />`}
    <//>
    <${Step} number="2" title="Tables"
      note=${html`<span class="small soft">${plural(draft.tables.length, "pattern")}</span>`}>
      <${TablePicker} source=${body.source} values=${body.values} ready=${Boolean(test.found?.server)}
        patterns=${draft.tables} error=${errors.tables ?? errors["tables.0"]}
        onChange=${(tables) => set("tables", tables)} />
    <//>
    <${Step} number="3" title="Lake"><${Lake} ...${shared} /><//>
    <${Step} number="4" title="Rules"
      note=${html`<span class="small soft">${plural((draft.table_options ?? []).length, "rule")}</span>`}>
      <${RuleForms} entries=${draft.table_options ?? []} body=${body} errors=${errors}
        onChange=${(entries) => set("table_options", entries)} />
    <//>
    ${schema?.properties && html`<${More} ...${shared} />`}`;
}

/** The API's errors by field, of a failed call. */
const byFields = (problem) => Object.fromEntries((problem?.errors ?? []).map((error) => [error.field ?? "", error]));

const Step = ({ number, title, note, children }) => html`
  <section class="card" aria-label=${title}>
    <div class="card-head">
      <h2 class="step-title"><span class="step" aria-hidden="true">${number}</span>${title}</h2>${note}</div>
    <div class="card-body stack">${children}</div></section>`;

function Source({ draft, set, about, asked, errors }) {
  const { source } = draft;
  const secret = placeOf(source);
  const mode = source.tls?.mode ?? "";
  const [variable, file] = ["Variable of the services", "File on the services' machines"];
  return html`
    <div class="fields">
      ${
        asked("name") &&
        html`<${TextField} label="Name of the pipeline" placeholder="shop" maxlength=${63} ...${about("name")} />`
      }
      <${TextField} label="Host" placeholder="db.example.com" ...${about("source.host")} />
      <${NumberField} label="Port" ...${about("source.port")} />
      <${TextField} label="User" placeholder="cdc" ...${about("source.user")} />
      <${SelectField} label="The password is in" value=${secret} options=${SECRETS}
        hint="Cutline stores where the password is, never the password."
        onInput=${(place) => set("source", { ...source, ...NOWHERE, ...(place === "none" ? {} : { [place]: "" }) })} />
      ${
        secret !== "none" &&
        html`<${TextField} key=${secret} label=${secret === "password_env" ? variable : file}
          placeholder=${secret === "password_env" ? "SHOP_PASSWORD" : "/run/secrets/shop"}
          ...${about(`source.${secret}`)} />`
      }
      <${ListField} label="Other servers" placeholder="db2.example.com:3306" ...${about("source.hosts")} />
      <${SelectField} label="TLS" options=${TLS_MODES} ...${about("source.tls")} value=${mode}
        error=${errors["source.tls"] ?? errors["source.tls.mode"]}
        onInput=${(chosen) => set("source.tls", tlsOf(source, chosen))} />
      ${
        !["disabled", "required"].includes(mode) &&
        html`<${TextField} label="CA certificates" optional placeholder="/etc/cutline/ca.pem"
          ...${about("source.tls.ca")} />`
      }
      ${
        ["required", "verify-ca", "verify-identity"].includes(mode) &&
        html`<${TextField} key="cert" label="Client certificate" optional ...${about("source.tls.cert")} />
          <${TextField} key="key" label="Its private key" optional ...${about("source.tls.key")} />`
      }
    </div>`;
}

const NOWHERE = { password_env: undefined, password_file: undefined };
const placeOf = (source) =>
  ["password_env", "password_file"].find((place) => source[place] !== undefined && source[place] !== null) ?? "none";

const tlsOf = ({ tls }, mode) =>
  mode === "disabled"
    ? { mode }
    : { ...tls, mode: mode || undefined, ...(mode === "required" ? { ca: undefined } : {}) };

/** Several values in one field, with commas or spaces between. What is typed stays as it is while it means the same. */
function ListField({ value, onInput, ...rest }) {
  const [text, setText] = useState((value ?? []).join(", "));
  return html`<${TextField} optional value=${text} ...${rest} onInput=${(typed) => {
    setText(typed);
    onInput(typed.split(/[\s,]+/).filter(Boolean));
  }} />`;
}

/** Tags in one field: `team: commerce, env: production`. */
function TagsField({ value, onInput, ...rest }) {
  const [text, setText] = useState(() =>
    Object.entries(value ?? {})
      .map((pair) => pair.join(": "))
      .join(", "),
  );
  const pairs = (typed) =>
    typed
      .split(",")
      .map((each) => each.split(/:(.*)/s).map((part) => part.trim()))
      .filter(([name]) => name);
  return html`<${TextField} label="Tags" optional placeholder="team: commerce, env: production" value=${text} ...${rest}
    onInput=${(typed) => {
      setText(typed);
      onInput(Object.fromEntries(pairs(typed).map(([name, item = ""]) => [name, item])));
    }} />`;
}

function Lake({ schema, draft, set, about, asked }) {
  const words = WORDS.filter((name) => asked(name) && schema?.properties?.[name]);
  const start = typeof draft.start === "object" ? null : (draft.start ?? "");
  return html`
    <div class="fields">
      ${
        asked("sink.warehouse") &&
        html`<${TextField} label="Warehouse" placeholder="s3://lake/warehouse" ...${about("sink.warehouse")} />`
      }
      ${
        asked("start") &&
        schema?.properties &&
        start !== null &&
        html`<${SelectField} label="Where to begin" options=${STARTS} ...${about("start")} value=${start}
          onInput=${(value) => set("start", value || undefined)} />`
      }
      ${words
        .filter((name) => showable(schema, schema.properties[name]))
        .map(
          (name) => html`<${SettingField} key=${name} root=${schema} name=${name} schema=${schema.properties[name]}
            ...${about(name)} />`,
        )}
      <${TagsField} ...${about("tags")} />
    </div>`;
}

const More = (shared) => html`
  <details class="card more-settings">
    <summary>More settings <span class="quiet small">each has a default that fits most</span></summary>
    ${SECTIONS.filter((name) => shared.asked(name) && shared.schema.properties[name]).map(
      (name) => html`<${Section} key=${name} name=${name} ...${shared} />`,
    )}</details>`;

function Section({ schema, name, about, asked }) {
  const found = resolved(schema, schema.properties[name]).schema.properties ?? {};
  const names = Object.keys(found).filter((key) => asked(`${name}.${key}`) && showable(schema, found[key]));
  return html`
    <fieldset class="settings"><legend>${name.replace(/^./, (first) => first.toUpperCase())}</legend>
      <div class="fields">${names.map(
        (key) => html`<${SettingField} key=${key} root=${schema} name=${key} schema=${found[key]}
          ...${about(`${name}.${key}`)} />`,
      )}</div></fieldset>`;
}

function TestResult({ test }) {
  const bad = (text) =>
    html`<span class="badge tone-quarantined" role="status"><${Icon} name="warning" size=${12} />${text}</span>`;
  if (test.state === "asking")
    return html`<span class="badge tone-snapshot"><span class="spinner"></span>asking</span>`;
  if (test.state === "failed") return bad("not usable");
  if (test.state !== "known") return null;
  const { found } = test;
  if (!found.ok) return bad(plural(found.faults.length, "fault"));
  return html`<span class="badge tone-live" role="status"><${Icon} name="check" size=${12} />${found.server}</span>`;
}

const Faults = ({ found: { server, faults } }) => html`
  <${Notice} tone="bad" icon="warning" title=${server ? `${server} can't be read yet` : "The source can't be read"}>
    <ul class="plan-list">${faults.map(
      ({ detail, remedy }) => html`<li key=${detail}>${sentence(detail)} ${sentence(remedy)}</li>`,
    )}</ul><//>`;
