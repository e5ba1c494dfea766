// The definition: its versions with their authors, each with its defaults, and the difference between two of them.
import { get, getAll, pipelinePath } from "../api.js";
import { hasDraft } from "../drafts.js";
import { ago, label, moment, yaml, yamlLines } from "../format.js";
import { usePoll } from "../hooks.js";
import { html, useEffect, useMemo, useRef, useState } from "../html.js";
import { may, OPERATIONS, reasonAgainst } from "../operations.js";
import { Button, Card, Failure, Loading, Polled, Segments } from "../parts/basics.js";
import { useSchema } from "../parts/pipelineform.js";
import { withDefaults } from "../parts/schemaform.js";
import { beginning, Change, Diff, draftOf } from "./change.js";

export function Definition({ pipeline, me, ask, refresh }) {
  const versions = usePoll(
    (signal) => getAll(pipelinePath(pipeline.name, "/versions"), { signal }),
    5,
    `versions ${pipeline.name}`,
  );
  const [editing, setEditing] = useState(() => may(me, "admin") && hasDraft(draftOf(pipeline)));
  const [error, setError] = useState(null);
  const before = useRef(null);
  useEffect(() => {
    // the field, and after it the button that opened it
    const wanted = editing ? ".editor :is(input, textarea)" : "[data-change]";
    let [frame, left] = [0, 60]; // it may be drawn some frames later
    const look = () => {
      document.querySelector(wanted)?.focus();
      if (!document.activeElement?.matches(wanted) && left-- > 0) frame = requestAnimationFrame(look);
    };
    if (editing || before.current) look();
    before.current = editing;
    return () => cancelAnimationFrame(frame);
  }, [editing]);
  const edit = async () => {
    try {
      setEditing(await beginning(pipeline.name));
      setError(null);
    } catch (failed) {
      setError(failed);
    }
  };
  if (editing)
    return html`<${Change} pipeline=${pipeline} start=${editing === true ? null : editing} onEnd=${() => {
      setEditing(false);
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
  const schema = useSchema();
  const version = chosen ?? all[0]?.version ?? 1;
  const before = all.find((item) => item.version < version)?.version ?? null;
  const text = usePoll(
    async (signal) => {
      const read = async (number) =>
        number === null ? null : (await get(pipelinePath(pipeline.name, `/versions/${number}`), { signal })).definition;
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
        <div class="card-body">${text.data ? (shown === "changes" && text.data.previous !== null ? html`<${Diff} before=${yaml(text.data.previous)} after=${yaml(text.data.current)} />` : html`<${Whole} schema=${schema} definition=${text.data.current} label=${`Definition, version ${version}`} />`) : text.error ? html`<${Failure} error=${text.error} />` : html`<${Loading} what="the version" />`}</div>
      </section>
    </div>`;
}

/** A definition with the settings that it leaves out, each at its default. */
function Whole({ schema, definition, label: name }) {
  const [lines, standard] = useMemo(() => {
    if (!schema?.properties) return [yamlLines(definition), new Set()];
    const filled = withDefaults(schema, definition);
    return [yamlLines(filled.definition), filled.standard];
  }, [schema, definition]);
  const usual = (path) => standard.has(path);
  return html`<pre class="code" tabindex="0" aria-label=${name}>${lines.map(
    ([line, path], i) =>
      html`<span key=${i} class=${usual(path) ? "quiet" : ""}>${line}${usual(path) ? "  # default" : ""}${"\n"}</span>`,
  )}</pre>`;
}
