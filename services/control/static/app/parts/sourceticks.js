// The source's tables in a dialog: those that the pipeline does not have yet, to be ticked; a database as a whole too.
import { plural } from "../format.js";
import { html, useState } from "../html.js";
import { may } from "../operations.js";
import { Button, Failure } from "./basics.js";
import { Databases, globOf, TickList, useDatabases } from "./sourcetables.js";

/** `ticked`: globs so far; `captured`: the tables that the pipeline has. `onInput(globs)`. */
export function SourceTicks({ pipeline, captured = [], ticked, me, onInput }) {
  const [ready, setReady] = useState(false);
  const { source, values, tables: patterns } = pipeline.definition;
  const databases = useDatabases(source, values, ready);
  if (!may(me, "admin")) return html`<p class="small quiet">An admin can choose from the source's tables here.</p>`;
  if (!ready)
    return html`<div class="actions"><${Button} size="small" icon="search" onClick=${() => setReady(true)}>
      Choose from the source's tables<//></div>`;
  const known = new Set(captured.filter((table) => table.phase !== "dropped").map((table) => table.table));
  const tick = (glob, on) => onInput(on ? [...ticked, glob] : ticked.filter((each) => each !== glob));
  const there = (glob) => patterns.includes(glob);
  return html`
    ${databases.failure && html`<${Failure} error=${databases.failure} />`}
    ${!databases.schemas && !databases.failure && html`<p class="quiet" role="status">Asking the source …</p>`}
    ${
      databases.schemas &&
      html`<${Databases} databases=${databases} onTick=${tick} off=${there}
      ticked=${(glob) => there(glob) || ticked.includes(glob)} />`
    }
    ${
      databases.tables.length > 0 &&
      html`<${TickList} tables=${databases.tables} ticked=${(name) => known.has(name) || ticked.includes(globOf(name))}
        off=${(name) => (known.has(name) ? "copied already" : null)}
        onTick=${(table, on) => tick(globOf(table.table), on)}
        head=${`${plural(ticked.length, "choice")} so far`} />`
    }`;
}
