// Choosing tables: by ticks in the source's list, or by patterns on database.table; both are the same list of patterns.
import { plural } from "../format.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { Icon } from "../icons.js";
import { Button, Failure } from "./basics.js";
import { TextField } from "./fields.js";
import { Databases, findTables, globOf, TickList, useDatabases } from "./sourcetables.js";

const wild = (pattern) => /[*?]/.test(pattern.replace(/\[[^\]]*\]/g, ""));

/** The patterns after a tick; what they match then is known, unless `doubtful`. `all`: the glob of its database. */
function ticking(patterns, name, on, all) {
  const glob = globOf(name);
  const kept = patterns.filter((pattern) => pattern !== glob && pattern !== `!${glob}`);
  const includes = kept.filter((pattern) => !pattern.startsWith("!") && wild(pattern));
  const doubtful = kept.some((pattern) => pattern.startsWith("!") && wild(pattern));
  if (on) return { next: kept.includes(all) ? kept : [...kept, glob], doubtful };
  return { next: includes.length ? [...kept, `!${glob}`] : kept, doubtful: false };
}

/** `ready`: the source has been tested; `patterns`: as `tables` of the pipeline file has them. */
export function TablePicker({ source, values, ready, patterns, error, onChange }) {
  const [text, setText] = useState("");
  const [found, setFound] = useState(null);
  const [whole, setWhole] = useState(false);
  const [failure, setFailure] = useState(null);
  const [left, setLeft] = useState([]); // unticked: they stay in the list
  const known = useRef(null); // the patterns whose tables `found` has already
  const databases = useDatabases(source, values, ready);
  const key = patterns.join("\n");
  useEffect(() => {
    if (!ready) setLeft([]);
    if (!ready || !patterns.length) {
      setFound(null);
      known.current = null;
      return undefined;
    }
    if (known.current === key) return undefined;
    const abort = new AbortController();
    const before = found;
    setFailure(null);
    setWhole(false);
    findTables({ source, values, tables: patterns, signal: abort.signal }, (all, end) => {
      if (end || !before) setFound(all); // ticks don't vanish while the list comes again
      if (end) known.current = key;
      setWhole(end);
    }).catch((failed) => failed.name === "AbortError" || setFailure(failed));
    return () => abort.abort();
  }, [ready, key]);
  const add = (pattern) => {
    if (pattern && !patterns.includes(pattern)) onChange([...patterns, pattern]);
    setText("");
  };
  const chosen = new Set((found ?? []).map((table) => table.table));
  const all = new Map([...databases.tables, ...left, ...(found ?? [])].map((table) => [table.table, table]));
  const listed = [...all.values()].sort((a, b) => (a.table < b.table ? -1 : 1));
  const tick = (table, on) => {
    const schema = databases.schemas?.find(({ glob }) => globOf(table.table).startsWith(glob.slice(0, -1)));
    const { next, doubtful } = ticking(patterns, table.table, on, schema?.glob);
    if (!doubtful && (whole || !patterns.length)) {
      known.current = next.join("\n");
      const rest = (found ?? []).filter((each) => each.table !== table.table);
      setFound(on ? [...rest, table] : rest);
      setWhole(true);
    }
    if (!on) setLeft([...left, table]);
    onChange(next);
  };
  const failed = failure ?? databases.failure;
  const match = !whole && patterns.length ? "so far …" : chosen.size === 1 ? "matches" : "match";
  return html`
    <div class="row pattern-row"><${TextField} label="Pattern" placeholder="shop.*" value=${text} error=${error}
      hint=${html`database.table with <code>*</code>; a leading <code>!</code> excludes, backticks hold a name with a
        dot. Enter adds it.`}
      onInput=${setText}
      onKeyDown=${(event) => {
        if (event.key === "Enter") {
          event.preventDefault();
          add(text.trim());
        }
      }} /><${Button} icon="plus" reason=${text.trim() ? null : "type a pattern first"}
        onClick=${() => add(text.trim())}>Add<//></div>
    ${patterns.length > 0 && html`<${Patterns} patterns=${patterns} onChange=${onChange} />`}
    ${!ready && html`<p class="quiet small">Test the connection to choose from the source's tables.</p>`}
    ${
      databases.schemas &&
      html`<${Databases} databases=${databases} ticked=${(glob) => patterns.includes(glob)}
        onTick=${(glob, on) => onChange(on ? [...patterns, glob] : patterns.filter((item) => item !== glob))} />`
    }
    ${failed && html`<${Failure} error=${failed} />`}
    ${
      ready &&
      listed.length > 0 &&
      html`<${TickList} tables=${listed} ticked=${(name) => chosen.has(name)} onTick=${tick}
        head=${`${plural(chosen.size, "table")} ${match}`} />`
    }`;
}

const Patterns = ({ patterns, onChange }) => html`
  <ul class="patterns" aria-label="Patterns">${patterns.map(
    (pattern) => html`<li key=${pattern} class="mono">${pattern}<button type="button" aria-label=${`Remove ${pattern}`}
      onClick=${() => onChange(patterns.filter((item) => item !== pattern))}>
      <${Icon} name="cross" size=${12} /></button>
    </li>`,
  )}</ul>`;
