// Checkpoints: a strip of the newest ones, the way of a chosen one through the mesh and into the lake, and savepoints.
import { get, getAll, pipelinePath } from "../api.js";
import { ago, brief, bytes, clock, count, label, moment, now, position, short } from "../format.js";
import { go, link, usePoll } from "../hooks.js";
import { html, useLayoutEffect, useRef } from "../html.js";
import { OPERATIONS, reasonAgainst } from "../operations.js";
import { Button, Card, Empty, Failure, Loading, Menu, Polled, sentence } from "../parts/basics.js";
import { Timeline } from "../parts/timeline.js";
import { timelineOf } from "../shapes.js";

const MARKS_SECONDS = 2;

export function Checkpoints({ pipeline, me, ask, rest }) {
  const list = usePoll(
    (signal) => get(pipelinePath(pipeline.name, "/checkpoints?limit=60"), { signal }),
    3,
    `checkpoints ${pipeline.name}`,
  );
  const savepoints = usePoll(
    (signal) => getAll(pipelinePath(pipeline.name, "/savepoints"), { signal }),
    6,
    `savepoints ${pipeline.name}`,
  );
  return html`
    <div class="stack">
      <${Polled} of=${list} what="checkpoints" within>${(all) => (all.length ? html`<${Chosen} pipeline=${pipeline} all=${all} wanted=${rest[0] ? Number(rest[0]) : null} ask=${ask} />` : html`<section class="card"><${Empty} title="No checkpoint yet">The first one is complete a few seconds after the mesh starts.<//></section>`)}<//>
      <${Card} title="Savepoints" body=${false} end=${html`<${Button} size="small" icon="flag" onClick=${() => ask("savepoint")}>Take one<//>`}>
        <${Savepoints} pipeline=${pipeline} found=${savepoints} me=${me} ask=${ask} />
      <//>
    </div>`;
}

function Chosen({ pipeline, all, wanted, ask }) {
  // Members report their marks up to a second late: of one that is newer, the lanes would be missing.
  const number =
    wanted ?? (all.find((item) => item.published && now() - item.written_at > MARKS_SECONDS) ?? all[0]).number;
  const detail = usePoll(
    (signal) => get(pipelinePath(pipeline.name, `/checkpoints/${number}`), { signal }),
    3,
    `checkpoint ${pipeline.name} ${number}`,
  );
  const chosen = all.find((item) => item.number === number) ?? detail.data; // an older one is in no list
  const longest = Math.max(...all.map((item) => item.written_at - (item.started_at ?? item.written_at)), 0.001);
  const strip = [...all].reverse();
  const bars = useRef(null);
  useLayoutEffect(() => {
    bars.current.scrollLeft = bars.current.scrollWidth;
  }, [all[0].number]); // the newest stay in view
  return html`
    <${Card} title="Newest checkpoints" end=${html`<span class="small quiet">height: seconds from start to complete</span>`}>
      <div class="strip" ref=${bars} role="group" aria-label="Checkpoints, oldest first">
        ${strip.map((item) => {
          const seconds = item.written_at - (item.started_at ?? item.written_at);
          return html`<button key=${item.number} type="button" class="strip-bar ${item.published ? "published" : ""} ${item.kept ? "kept" : ""}" aria-pressed=${item.number === number ? "true" : "false"}
            aria-label=${`Checkpoint ${item.number}, ${clock(item.written_at)}, ${brief(seconds)}, ${item.published ? "published" : "not published"}${item.kept ? ", kept" : ""}`} title=${`${item.number} · ${clock(item.written_at)} · ${brief(seconds)}`}
            onClick=${() => go(link("pipelines", pipeline.name, "checkpoints", item.number))}><span style=${{ height: `${8 + (seconds / longest) * 52}px` }}></span></button>`;
        })}
      </div>
      <ul class="legend strip-legend"><li class="tone-live"><span class="swatch"></span>published</li><li class="tone-waiting"><span class="swatch"></span>not yet published</li><li class="tone-snapshot"><span class="swatch"></span>kept as a savepoint</li></ul>
    <//>
    ${chosen ? html`<${Way} chosen=${chosen} detail=${detail} ask=${ask} />` : detail.error ? html`<section class="card"><${Empty} title=${`No checkpoint ${number}`} actions=${html`<a class="button" href=${link("pipelines", pipeline.name, "checkpoints")}>The newest checkpoints</a>`}>${sentence(detail.error.message)}<//></section>` : html`<${Loading} what="the checkpoint" />`}`;
}

/** The chosen checkpoint: where it is in the binlog, and its way. */
function Way({ chosen, detail, ask }) {
  return html`
    <section class="card" aria-label=${`Checkpoint ${chosen.number}`}>
      <div class="card-head"><h2>Checkpoint ${label(chosen.number)}${chosen.name ? html` <span class="quiet">${chosen.name}</span>` : null}</h2>
        <span class="small quiet number">${moment(chosen.written_at)}</span>
        <${Button} size="small" icon="back" onClick=${() => ask("restore", { checkpoint: chosen })}>Restore<//></div>
      <div class="card-body stack">
        <dl class="facts facts-wide">
          <dt>Position</dt><dd class="mono">${position(chosen.position)}</dd>
          <dt>Shows the source at</dt><dd>${moment(chosen.source_time)}</dd>
          <dt>Staged</dt><dd>${short(chosen.staged_rows)} rows in ${count(chosen.staged_files)} files, ${bytes(chosen.staged_bytes)}</dd>
          <dt>Epoch</dt><dd>${label(chosen.epoch)}</dd>
        </dl>
        ${detail.data ? html`<${Timeline} checkpoint=${timelineOf(chosen, detail.data)} />` : detail.error ? html`<${Failure} error=${detail.error} />` : html`<${Loading} what="its way" />`}
      </div>
    </section>`;
}

function Savepoints({ pipeline, found, me, ask }) {
  if (found.error && !found.data)
    return html`<div class="card-body"><${Failure} error=${found.error} retry=${found.refresh} /></div>`;
  const all = found.data ?? [];
  if (!all.length)
    return html`<${Empty} title="No savepoint">A savepoint is a checkpoint that stays, with a tag on each live table.<//>`;
  const item = (id, checkpoint) => ({
    ...OPERATIONS[id],
    label: OPERATIONS[id].title,
    note: OPERATIONS[id].note ?? "",
    reason: reasonAgainst(OPERATIONS[id], { pipeline }, me),
    run: () => ask(id, { checkpoint }),
  });
  return html`
    <div class="scroll-x" tabindex="0" role="region" aria-label="Savepoints"><table class="list rows">
      <thead><tr><th>Savepoint</th><th class="number">Checkpoint</th><th>Taken</th><th>Position</th><th><span class="hidden">Operations</span></th></tr></thead>
      <tbody>${all.map(
        (
          one,
        ) => html`<tr key=${one.number}><td class="strong">${one.name ?? "unnamed"}</td><td class="number" data-label="checkpoint">${label(one.number)}</td><td class="nowrap" title=${ago(one.written_at)}>${moment(one.written_at)}</td><td class="mono soft">${position(one.position)}</td>
        <td><${Menu} label=${`Operations on savepoint ${one.number}`} items=${[item("restore", one), item("delete_savepoint", one)]} /></td></tr>`,
      )}</tbody>
    </table></div>`;
}
